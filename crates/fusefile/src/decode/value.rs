//! One node to one typed value.

use super::object::Decode;
use super::{Decoder, Segment, Slot};
use crate::diagnostic::quoted;
use crate::model::{Entry, Field, List, Map, Run};
use crate::yaml::{Content, Node, Number, Tag, as_bool, as_number, tag_of};

/// A type that a non-null node may be read as.
pub(super) trait FromYaml: Default {
    /// Lists and objects are pointed at by their key, scalars by themselves.
    const CONTAINER: bool = false;

    /// Reads `node`, whose type is `tag`. `None` when it does not fit, which has been reported.
    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, tag: Tag) -> Option<Self>;
}

/// Any scalar, as its source text.
impl FromYaml for String {
    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, _tag: Tag) -> Option<Self> {
        match &node.content {
            Content::Scalar { text, .. } => Some(text.clone()),
            _ => {
                d.mismatch(node, "text", None);
                None
            }
        }
    }
}

impl FromYaml for Option<String> {
    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, tag: Tag) -> Option<Self> {
        String::from_yaml(d, node, tag).map(Some)
    }
}

/// Integers, and floats without a fraction.
impl FromYaml for i64 {
    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, tag: Tag) -> Option<Self> {
        whole_number(d, node, tag, "a whole number", Some)
    }
}

/// `resources.cpus`.
impl FromYaml for i32 {
    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, tag: Tag) -> Option<Self> {
        let what = "a whole number of CPUs";
        whole_number(d, node, tag, what, |value| Self::try_from(value).ok())
    }
}

/// A number without a fraction that `fits`; what a number must be instead is `what`.
fn whole_number<'t, T>(
    d: &mut Decoder<'t>,
    node: &'t Node,
    tag: Tag,
    what: &str,
    fits: impl Fn(i64) -> Option<T>,
) -> Option<T> {
    let (Content::Scalar { text, .. }, Tag::Int | Tag::Float) = (&node.content, tag) else {
        d.mismatch(node, "a whole number", unquote(node, tag));
        return None;
    };
    let value = match as_number(text) {
        Some(Number::Int(value)) => Some(value),
        Some(Number::Float(value)) => whole(value),
        // Only its tag says that it is a number.
        None => None,
    };
    let value = value.and_then(fits);
    if value.is_none() {
        d.report(
            node.at,
            format!("must be {what}, got {}", quoted(text)),
            None,
        );
    }
    value
}

/// What to do about a number in quotes.
fn unquote(node: &Node, tag: Tag) -> Option<String> {
    match &node.content {
        Content::Scalar { text, .. } if tag == Tag::Str && as_number(text).is_some() => {
            Some("write it without quotes".to_owned())
        }
        _ => None,
    }
}

fn whole(value: f64) -> Option<i64> {
    // Beyond 2^53 a float names no particular integer.
    let limit = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "whole and within ±2^53")]
    (value.fract() == 0.0 && value.abs() <= limit).then_some(value as i64)
}

impl FromYaml for bool {
    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, tag: Tag) -> Option<Self> {
        let value = match (&node.content, tag) {
            (Content::Scalar { text, .. }, Tag::Str) => as_bool(text, false),
            (Content::Scalar { text, .. }, Tag::Bool) => as_bool(text, true),
            _ => None,
        };
        if value.is_none() {
            d.mismatch(node, "true or false", None);
        }
        value
    }
}

impl FromYaml for Option<bool> {
    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, tag: Tag) -> Option<Self> {
        bool::from_yaml(d, node, tag).map(Some)
    }
}

/// Null items are dropped; an item that does not fit stays as a broken one, so that the others keep
/// their index.
impl<T: FromYaml> FromYaml for List<T> {
    const CONTAINER: bool = true;

    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, _tag: Tag) -> Option<Self> {
        let Content::List(items) = &node.content else {
            let hint = matches!(node.content, Content::Scalar { .. })
                .then(|| "write it as a list: [ … ]".to_owned());
            d.mismatch(node, "a list", hint);
            return None;
        };
        let mut out = Vec::with_capacity(items.len());
        for &id in items {
            let item = d.tree.node(id);
            if tag_of(item) == Some(Tag::Null) {
                continue;
            }
            let slot = Slot {
                node: Some(id),
                key: item.at,
            };
            let value: Field<T> = d.within(Segment::Index(out.len()), |d| d.field(slot));
            out.push(value);
        }
        Some(out)
    }
}

/// A null value exists, as the type's default.
impl<T: FromYaml> FromYaml for Map<T> {
    const CONTAINER: bool = true;

    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, _tag: Tag) -> Option<Self> {
        let pairs = d.pairs(node)?;
        let mut out = Map::new();
        for pair in pairs {
            let slot = Slot {
                node: Some(pair.value),
                key: pair.at,
            };
            let value = d.within(Segment::Key(pair.key), |d| d.field(slot));
            out.insert(
                pair.key.to_owned(),
                Entry {
                    key_at: Some(pair.at),
                    value,
                },
            );
        }
        Some(out)
    }
}

impl<T: Decode> FromYaml for T {
    const CONTAINER: bool = true;

    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, _tag: Tag) -> Option<Self> {
        d.object(node)
    }
}

impl<T: Decode> FromYaml for Option<T> {
    const CONTAINER: bool = true;

    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, _tag: Tag) -> Option<Self> {
        d.object(node).map(Some)
    }
}

/// Text, or a list of text.
impl FromYaml for Run {
    fn from_yaml<'t>(d: &mut Decoder<'t>, node: &'t Node, _tag: Tag) -> Option<Self> {
        match &node.content {
            Content::Scalar { text, .. } if text.is_empty() => Some(Self::Absent),
            Content::Scalar { text, .. } => Some(Self::Shell(text.clone())),
            Content::List(items) if items.is_empty() => {
                d.report(node.at, "the list of arguments is empty", None);
                None
            }
            Content::List(items) => {
                let mut arguments = Vec::with_capacity(items.len());
                let mut fits = true;
                for (index, &id) in items.iter().enumerate() {
                    match argument(d, index, d.tree.node(id)) {
                        Some(text) => arguments.push(text),
                        None => fits = false,
                    }
                }
                fits.then_some(Self::Exec(arguments))
            }
            Content::Map(_) | Content::Broken => {
                d.mismatch(node, "a command or a list of arguments", None);
                None
            }
        }
    }
}

/// One argument of the exec form: text and nothing that only looks like it.
fn argument<'t>(d: &mut Decoder<'t>, index: usize, node: &'t Node) -> Option<String> {
    d.within(Segment::Index(index), |d| {
        match (&node.content, tag_of(node)?) {
            (Content::Scalar { text, .. }, Tag::Str) => Some(text.clone()),
            (Content::Scalar { .. }, _) => {
                d.mismatch(node, "text", Some("put the argument in quotes".to_owned()));
                None
            }
            _ => {
                d.mismatch(node, "text", None);
                None
            }
        }
    })
}
