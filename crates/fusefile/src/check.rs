//! Stages 2 to 5 in one go: every problem of a file at once.

use crate::compile::{Compiled, compile};
use crate::decode::{Document, Parsed, parse};
use crate::diagnostic::Diagnostic;
use crate::fs::Tree;
use crate::sources::{Contents, read_sources};
use crate::validate::validate;

/// What came of [`check`].
#[derive(Debug, Clone)]
pub struct Checked {
    /// The document, as far as it could be decoded.
    pub document: Document,
    /// Every problem: of the text by position, then of the structure, the sources and the values, each in
    /// the catalogue's order.
    pub problems: Vec<Diagnostic>,
    /// The compiled file; `None` exactly when there are problems.
    pub compiled: Option<Compiled>,
}

/// Decodes, validates and compiles `source`. `path` is what diagnostics call the file; `tree` is its
/// directory, or `None` to leave `files[].source` unread, which then count as empty.
#[must_use]
pub fn check(path: &str, source: &[u8], tree: Option<&dyn Tree>) -> Checked {
    let Parsed {
        document,
        mut problems,
        complete,
    } = parse(path, source);
    if !complete {
        return Checked {
            document,
            problems,
            compiled: None,
        };
    }
    problems.extend(validate(&document));
    let contents = match tree {
        Some(tree) => {
            let (contents, unreadable) = read_sources(&document, tree);
            problems.extend(unreadable);
            contents
        }
        None => Contents::unread(),
    };
    let compiled = match compile(&document, &contents) {
        Ok(compiled) => Some(compiled).filter(|_| problems.is_empty()),
        Err(found) => {
            problems.extend(found);
            None
        }
    };
    Checked {
        document,
        problems,
        compiled,
    }
}
