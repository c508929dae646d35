//! A document as a JSON value, for tests that read back what was written.

use serde_json::{Map, Value};

use super::{Content, Node, Number, Tag, Tree, as_number, build, tag_of};

/// The value of `text`, or its problems.
pub(crate) fn to_json(text: &str) -> Result<Value, String> {
    let (tree, problems) = build(text);
    match (tree.root(), problems.first()) {
        (_, Some(problem)) => Err(problem.message.clone()),
        (None, _) => Ok(Value::Null),
        (Some(root), None) => Ok(value(&tree, root)),
    }
}

fn value(tree: &Tree, node: &Node) -> Value {
    match &node.content {
        Content::Scalar { text, .. } => match tag_of(node) {
            Some(Tag::Int) => match as_number(text) {
                Some(Number::Int(n)) => n.into(),
                _ => Value::Null,
            },
            Some(Tag::Null) => Value::Null,
            Some(Tag::Bool) => (text == "true").into(),
            _ => text.as_str().into(),
        },
        Content::List(items) => items.iter().map(|id| value(tree, tree.node(*id))).collect(),
        Content::Map(pairs) => Value::Object(
            pairs
                .iter()
                .map(|(key, item)| (key_text(tree.node(*key)), value(tree, tree.node(*item))))
                .collect::<Map<_, _>>(),
        ),
        Content::Broken => Value::Null,
    }
}

fn key_text(node: &Node) -> String {
    match &node.content {
        Content::Scalar { text, .. } => text.clone(),
        _ => String::new(),
    }
}
