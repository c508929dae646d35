//! Parser events to a tree.

use std::borrow::Cow;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::{Content, MAX_ALIAS_COST, MAX_DEPTH, Node, NodeId, Tag};
use crate::diagnostic::{Position, quoted};

/// A document as nodes.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    root: Option<NodeId>,
    /// The text was read to its end.
    pub(crate) complete: bool,
}

/// A problem of the text itself.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) at: Position,
    pub(crate) message: String,
    pub(crate) suggestion: Option<String>,
}

impl Tree {
    /// The document's node; `None` when there is none.
    pub(crate) fn root(&self) -> Option<&Node> {
        self.root.map(|id| self.node(id))
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }
}

/// Reads `text`. What could be read is returned whatever problems there were.
pub(crate) fn build(text: &str) -> (Tree, Vec<Problem>) {
    let options = granit_parser::options! {
        emit_unresolved_aliases: true,
        block_scalar_eof_without_line_feed: true,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut builder = Builder::default();
    let mut complete = true;
    for event in Parser::new_from_str_with_options(text, options) {
        match event {
            Ok((event, span)) => {
                if !builder.event(event, span) {
                    break;
                }
            }
            Err(error) => {
                builder.problems.push(syntax(&error));
                builder.close_all();
                complete = false;
                break;
            }
        }
    }
    (
        Tree {
            nodes: builder.nodes,
            root: builder.root,
            complete,
        },
        builder.problems,
    )
}

fn syntax(error: &ScanError) -> Problem {
    let tabs = error.info().contains("tab");
    Problem {
        at: point(error.marker()),
        message: format!("not valid YAML: {}", error.info()),
        suggestion: tabs.then(|| "indent with spaces".to_owned()),
    }
}

/// A list or map whose end has not come yet.
struct Open {
    content: Content,
    tag: Option<Tag>,
    at: Position,
    anchor: usize,
    /// The key whose value comes next, in a map.
    key: Option<NodeId>,
    cost: usize,
}

#[derive(Clone, Copy)]
enum Anchor {
    /// The node is still being read: an alias to it would make a cycle.
    Open,
    Done(NodeId),
}

#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
    /// Cost of each node with all below it, aliases counted each time.
    costs: Vec<usize>,
    root: Option<NodeId>,
    open: Vec<Open>,
    anchors: Vec<Option<Anchor>>,
    alias_cost: usize,
    documents: usize,
    problems: Vec<Problem>,
}

impl Builder {
    /// Takes one event; `false` when nothing after it matters.
    fn event(&mut self, event: Event<'_>, span: Span) -> bool {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    self.problem(&span, "a second document starts here; a Fusefile is one");
                    return false;
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tag = self.tag(tag, &span);
                let plain = style == ScalarStyle::Plain;
                let cost = text.len();
                let content = Content::Scalar {
                    text: text.into_owned(),
                    plain,
                };
                self.finish(
                    Node {
                        content,
                        tag,
                        at: position(&span),
                    },
                    anchor,
                    cost,
                );
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.start(Content::List(Vec::new()), anchor, tag, &span);
            }
            Event::MappingStart(_, anchor, tag) => {
                self.start(Content::Map(Vec::new()), anchor, tag, &span);
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => self.alias(anchor, &span),
            Event::UnresolvedAlias(name) => {
                self.problem(&span, &format!("no anchor named {} above", quoted(&name)));
                self.broken(&span);
            }
            _ => {}
        }
        true
    }

    fn problem(&mut self, span: &Span, message: &str) {
        let problem = Problem {
            at: position(span),
            message: message.to_owned(),
            suggestion: None,
        };
        self.problems.push(problem);
    }

    fn tag(&mut self, tag: Option<Cow<'_, granit_parser::Tag>>, span: &Span) -> Option<Tag> {
        let tag = tag?;
        let name = tag.to_string();
        match name.as_str() {
            "!" | "!!str" | "tag:yaml.org,2002:str" => Some(Tag::Str),
            "!!int" | "tag:yaml.org,2002:int" => Some(Tag::Int),
            "!!float" | "tag:yaml.org,2002:float" => Some(Tag::Float),
            "!!bool" | "tag:yaml.org,2002:bool" => Some(Tag::Bool),
            "!!null" | "tag:yaml.org,2002:null" => Some(Tag::Null),
            "!!seq" | "tag:yaml.org,2002:seq" => Some(Tag::List),
            "!!map" | "tag:yaml.org,2002:map" => Some(Tag::Map),
            _ => {
                self.problem(span, &format!("tag {} means nothing here", quoted(&name)));
                None
            }
        }
    }

    fn start(
        &mut self,
        content: Content,
        anchor: usize,
        tag: Option<Cow<'_, granit_parser::Tag>>,
        span: &Span,
    ) {
        let tag = self.tag(tag, span);
        self.set_anchor(anchor, Anchor::Open);
        let at = point(&span.start);
        self.open.push(Open {
            content,
            tag,
            at,
            anchor,
            key: None,
            cost: 0,
        });
    }

    fn close(&mut self) {
        if let Some(open) = self.open.pop() {
            let node = Node {
                content: open.content,
                tag: open.tag,
                at: open.at,
            };
            self.finish(node, open.anchor, open.cost);
        }
    }

    /// After a syntax error: everything that is open ends here. A key without a value is dropped, and a
    /// list without items is not an empty list.
    fn close_all(&mut self) {
        while let Some(open) = self.open.last_mut() {
            if matches!(&open.content, Content::List(items) if items.is_empty()) {
                open.content = Content::Broken;
            }
            self.close();
        }
    }

    fn finish(&mut self, node: Node, anchor: usize, cost: usize) {
        let id = NodeId(self.nodes.len());
        self.nodes.push(node);
        self.costs.push(cost.saturating_add(16));
        self.set_anchor(anchor, Anchor::Done(id));
        self.place(id);
    }

    /// Puts a node where the document is at.
    fn place(&mut self, id: NodeId) {
        let cost = self.costs[id.0];
        let Some(open) = self.open.last_mut() else {
            self.root.get_or_insert(id);
            return;
        };
        open.cost = open.cost.saturating_add(cost);
        match &mut open.content {
            Content::Map(pairs) => match open.key.take() {
                Some(key) => pairs.push((key, id)),
                None => open.key = Some(id),
            },
            Content::List(items) => items.push(id),
            Content::Scalar { .. } | Content::Broken => {}
        }
    }

    fn alias(&mut self, anchor: usize, span: &Span) {
        match self.anchors.get(anchor).copied().flatten() {
            Some(Anchor::Done(id)) => {
                let before = self.alias_cost;
                self.alias_cost = before.saturating_add(self.costs[id.0]);
                if self.alias_cost <= MAX_ALIAS_COST {
                    return self.place(id);
                }
                if before <= MAX_ALIAS_COST {
                    self.problem(
                        span,
                        "aliases repeat too much text; write it out or use less",
                    );
                }
            }
            Some(Anchor::Open) => {
                self.problem(span, "this alias names the value that it stands in");
            }
            None => self.problem(span, "no such anchor above"),
        }
        self.broken(span);
    }

    fn broken(&mut self, span: &Span) {
        self.finish(
            Node {
                content: Content::Broken,
                tag: None,
                at: position(span),
            },
            0,
            0,
        );
    }

    fn set_anchor(&mut self, anchor: usize, state: Anchor) {
        if anchor == 0 {
            return;
        }
        if self.anchors.len() <= anchor {
            self.anchors.resize(anchor + 1, None);
        }
        self.anchors[anchor] = Some(state);
    }
}

fn point(marker: &granit_parser::Marker) -> Position {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Position {
        line: count(marker.line().max(1)),
        column: count(marker.col() + 1),
        width: 1,
    }
}

/// The start of a span, as wide as the span when that stays on one line.
fn position(span: &Span) -> Position {
    let start = point(&span.start);
    let end = point(&span.end);
    let width = if end.line == start.line {
        end.column.saturating_sub(start.column).max(1)
    } else {
        1
    };
    Position { width, ..start }
}
