//! YAML text to a tree of nodes with positions.
//!
//! Only syntax is judged here: what a node must be is the business of `decode`. Aliases share the node
//! they name, so the tree is a graph without cycles, and what aliases add to a walk over it is bounded
//! ([`MAX_ALIAS_COST`]). The rest of a file with a syntax error is lost, what came before is kept.

mod build;
mod scalar;
mod text;
#[cfg(test)]
mod to_json;

pub(crate) use build::{Tree, build};
pub(crate) use scalar::{Number, as_bool, as_number, is_text, resolves_to_text, tag_of};
pub(crate) use text::to_utf8;
#[cfg(test)]
pub(crate) use to_json::to_json;

use crate::diagnostic::Position;

/// Most bytes of a Fusefile. The script made of it has to fit into 128 KiB.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// Most that all aliases of a file may add, in bytes of text plus 16 a node.
pub(crate) const MAX_ALIAS_COST: usize = 1 << 20;

/// Deepest nesting; the format itself needs six levels.
pub(crate) const MAX_DEPTH: usize = 64;

/// Index of a node in its [`Tree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeId(usize);

/// One value of the document.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) content: Content,
    /// The tag written before it, if any.
    pub(crate) tag: Option<Tag>,
    pub(crate) at: Position,
}

/// What a node holds.
#[derive(Debug)]
pub(crate) enum Content {
    /// Text after unescaping. `plain` = neither quoted nor a block.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<NodeId>),
    /// Keys and values as written, duplicates included.
    Map(Vec<(NodeId, NodeId)>),
    /// Something already reported.
    Broken,
}

/// The type of a node, by its tag or its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    Str,
    Int,
    Float,
    Bool,
    Null,
    Timestamp,
    Merge,
    List,
    Map,
}

impl Tag {
    /// The type with an article, for messages.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Str | Self::Merge => "text",
            Self::Int | Self::Float => "a number",
            Self::Bool => "true or false",
            Self::Null => "nothing",
            Self::Timestamp => "a date",
            Self::List => "a list",
            Self::Map => "an object",
        }
    }
}
