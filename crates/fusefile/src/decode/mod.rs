//! YAML nodes to the typed [`Fusefile`], strictly: stage 2.
//!
//! Unknown and duplicate keys, wrong kinds and unparsable numbers are all collected, each with position,
//! field path and, where a person would say one, a suggestion. A value that could not be decoded leaves a
//! [`Field`] marked `broken`, so that later stages do not complain about it a second time.

mod object;
mod suggest;
#[cfg(test)]
mod tests;
mod value;

use std::borrow::Cow;

use crate::diagnostic::{Diagnostic, Position, Report, path_segment};
use crate::model::{Field, Fusefile};
use crate::yaml::{self, Node, NodeId, Tag, Tree, tag_of};

use object::Decode;
use value::FromYaml;

/// A Fusefile as text, decoded.
#[derive(Debug, Clone)]
pub struct Document {
    /// The file as the user named it.
    pub path: String,
    /// What it says. Complete only when there were no problems.
    pub file: Fusefile,
}

/// What came of [`parse`].
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The document, as far as it could be decoded.
    pub document: Document,
    /// Problems of stage 2, in order of position.
    pub problems: Vec<Diagnostic>,
    /// The text was read to its end. If not, the document is a part of what the author wrote, and nothing
    /// can be said about what it lacks.
    pub complete: bool,
}

/// Decodes `source`; `path` is what diagnostics call the file.
#[must_use]
pub fn parse(path: &str, source: &[u8]) -> Parsed {
    let (file, problems, complete) = match text(source) {
        Ok(text) => {
            let outcome = decode(path, &text);
            (outcome.file, outcome.problems, outcome.complete)
        }
        Err((at, message)) => {
            let mut report = Report::new(path);
            report.error(Some(at), "", message);
            (Fusefile::default(), report.into_problems(), false)
        }
    };
    let document = Document {
        path: path.to_owned(),
        file,
    };
    Parsed {
        document,
        problems,
        complete,
    }
}

struct Outcome {
    file: Fusefile,
    problems: Vec<Diagnostic>,
    complete: bool,
    /// Values looked at; what the tests hold to growing with the text.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "only tests look at the work done")
    )]
    work: usize,
}

fn decode(path: &str, text: &str) -> Outcome {
    let (tree, syntax) = yaml::build(text);
    let mut decoder = Decoder {
        tree: &tree,
        path: Vec::new(),
        report: Report::new(path),
        work: 0,
    };
    for problem in syntax {
        decoder
            .report
            .hinted(Some(problem.at), "", problem.message, problem.suggestion);
    }
    let root = tree.root().filter(|root| tag_of(root) != Some(Tag::Null));
    let file = root
        .and_then(|root| decoder.object(root))
        .unwrap_or_default();
    let work = decoder.work;
    let mut problems = decoder.report.into_problems();
    // The count of what is not shown has no position and stays last.
    problems.sort_by_key(|problem| (problem.position.is_none(), problem.position));
    Outcome {
        file,
        problems,
        complete: tree.complete,
        work,
    }
}

fn text(source: &[u8]) -> Result<Cow<'_, str>, (Position, String)> {
    if source.len() > yaml::MAX_BYTES {
        let limit = yaml::MAX_BYTES;
        return Err((
            Position::START,
            format!(
                "{} bytes, limit {limit}; fetch large data in a step",
                source.len()
            ),
        ));
    }
    yaml::to_utf8(source).map_err(|at| (at, "not UTF-8 text".to_owned()))
}

/// One step of a field path.
#[derive(Debug, Clone, Copy)]
enum Segment<'t> {
    Key(&'t str),
    Index(usize),
}

/// Where a value is looked for.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// `None`: the key was misspelt, so the value is somewhere but not here.
    node: Option<NodeId>,
    /// Position of the key, or of the list item.
    key: Position,
}

struct Decoder<'t> {
    tree: &'t Tree,
    path: Vec<Segment<'t>>,
    report: Report<'t>,
    work: usize,
}

impl<'t> Decoder<'t> {
    /// The value at `slot`, absent when null.
    fn field<T: FromYaml>(&mut self, slot: Slot) -> Field<T> {
        self.work += 1;
        let Some(id) = slot.node else {
            return Field {
                value: T::default(),
                at: Some(slot.key),
                broken: true,
            };
        };
        let tree = self.tree;
        let node = tree.node(id);
        let at = if T::CONTAINER { slot.key } else { node.at };
        match tag_of(node) {
            Some(Tag::Null) => Field::default(),
            None => Field {
                value: T::default(),
                at: Some(at),
                broken: true,
            },
            Some(tag) => match T::from_yaml(self, node, tag) {
                Some(value) => Field {
                    value,
                    at: Some(at),
                    broken: false,
                },
                None => Field {
                    value: T::default(),
                    at: Some(at),
                    broken: true,
                },
            },
        }
    }

    fn object<T: Decode>(&mut self, node: &'t Node) -> Option<T> {
        object::decode(self, node)
    }

    /// Runs `f` one level deeper in the path.
    fn within<R>(&mut self, segment: Segment<'t>, f: impl FnOnce(&mut Self) -> R) -> R {
        self.path.push(segment);
        let out = f(self);
        self.path.pop();
        out
    }

    fn report(&mut self, at: Position, message: impl Into<String>, suggestion: Option<String>) {
        let mut field = String::new();
        for segment in &self.path {
            match segment {
                Segment::Key(key) => {
                    if !field.is_empty() {
                        field.push('.');
                    }
                    field.push_str(&path_segment(key));
                }
                Segment::Index(index) => field.push_str(&format!("[{index}]")),
            }
        }
        self.report.hinted(Some(at), field, message, suggestion);
    }

    /// Reports that `node` is of the wrong kind.
    fn mismatch(&mut self, node: &Node, expected: &str, suggestion: Option<String>) {
        let found = tag_of(node).map_or("something broken", Tag::describe);
        self.report(
            node.at,
            format!("expected {expected}, found {found}"),
            suggestion,
        );
    }
}
