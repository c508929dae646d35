//! The JSON Schema of the format, generated from the same table that the decoder reads keys by.
//!
//! Advisory: it is for editors, and where the two disagree the compiler is right. Caps, duplicates, reserved
//! paths and the rules between GPU fields are beyond it. A second version of the format gets a schema of its
//! own; the meaning of this one never changes.

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use crate::grammar::names::RESTART_POLICIES;
use crate::shape::{FUSEFILE, Kind, Object, Rule, Text};

/// Permanent address of the schema. The host is reserved and resolves nowhere; it becomes the address of the
/// raw file once the project is published at one.
pub const ID: &str = "https://fuse.invalid/main/schema/fusefile-v1.json";

const SIZE: &str = r"^[0-9]+(\.[0-9]+)?[ \t]*([MmGgTt]|[MmGgTt][Bb]|[MmGgTt][Ii][Bb])$";
const DURATION: &str = r"^(0|([0-9]*\.?[0-9]+(ns|us|ms|s|m|h))+)$";
const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$";
const PLACEMENT_LABEL: &str = "^[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?$";
const IDENTIFIER: &str = "^[A-Za-z_][A-Za-z0-9_]*$";
const FILE_MODE: &str = "^0?[0-7]{3}$";
const MIG_PROFILE: &str = r"^[1-7][Gg]\.[0-9]+[Gg][Bb](\+[Mm][Ee])?$";
const PARENT_SEGMENT: &str = r"(^|/)\.\.(/|$)";

/// The schema, with two spaces of indent and a newline at the end: the published file.
#[must_use]
pub fn render() -> String {
    let mut text = crate::compile::json::pretty(&schema());
    text.push('\n');
    text
}

/// The schema as a value.
#[must_use]
pub fn schema() -> Value {
    let mut root = Map::new();
    root.insert(
        "$schema".to_owned(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    );
    root.insert("$id".to_owned(), json!(ID));
    root.insert("title".to_owned(), json!("Fusefile v1"));
    root.extend(object(&FUSEFILE));
    Value::Object(root)
}

fn object(shape: &Object) -> Map<String, Value> {
    let properties: Map<String, Value> = shape
        .fields
        .iter()
        .map(|field| {
            let mut value = kind(&field.kind);
            value.insert("description".to_owned(), json!(field.about));
            if field.deprecated {
                value.insert("deprecated".to_owned(), json!(true));
            }
            (field.key.to_owned(), Value::Object(value))
        })
        .collect();
    let mut out = Map::new();
    out.insert("type".to_owned(), json!("object"));
    out.insert("additionalProperties".to_owned(), json!(false));
    out.insert("properties".to_owned(), Value::Object(properties));
    let required = match &shape.rule {
        Rule::None => &[][..],
        Rule::Required(keys) | Rule::OneOf(keys, _) | Rule::NotBoth(keys, _) => keys,
    };
    if !required.is_empty() {
        out.insert("required".to_owned(), json!(required));
    }
    match &shape.rule {
        Rule::OneOf(_, [a, b]) => {
            out.insert(
                "oneOf".to_owned(),
                json!([{ "required": [a] }, { "required": [b] }]),
            );
        }
        Rule::NotBoth(_, pair) => {
            out.insert("not".to_owned(), json!({ "required": pair }));
        }
        Rule::None | Rule::Required(_) => {}
    }
    out
}

fn kind(kind: &Kind) -> Map<String, Value> {
    let value = match kind {
        Kind::Version => json!({ "const": 1 }),
        Kind::Text(rule) => return text(*rule),
        Kind::Int(low, high) => {
            let mut out = object_of(json!({ "type": "integer" }));
            out.extend(low.map(|low| ("minimum".to_owned(), json!(low))));
            out.extend(high.map(|high| ("maximum".to_owned(), json!(high))));
            return out;
        }
        Kind::Cpus => json!({ "type": "number", "multipleOf": 1, "minimum": 0 }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::List(least, item) => {
            let mut out = object_of(json!({ "type": "array", "items": self::kind(item) }));
            if *least > 0 {
                out.insert("minItems".to_owned(), json!(least));
            }
            return out;
        }
        Kind::Map(names, item) => {
            let mut out = object_of(json!({
                "type": "object",
                "additionalProperties": self::kind(item),
            }));
            if *names != Text::Any {
                out.insert("propertyNames".to_owned(), Value::Object(text(*names)));
            }
            return out;
        }
        Kind::Object(shape) => return object(shape),
        Kind::Step(shape) => json!({
            "oneOf": [text(Text::NonEmpty), object(shape)],
        }),
        Kind::Run => json!({
            "oneOf": [
                text(Text::NonEmpty),
                { "type": "array", "items": { "type": "string" }, "minItems": 1 },
            ],
        }),
    };
    object_of(value)
}

fn text(rule: Text) -> Map<String, Value> {
    object_of(match rule {
        Text::Any => json!({ "type": "string" }),
        Text::NonEmpty => json!({ "type": "string", "minLength": 1 }),
        Text::DnsLabel => pattern(DNS_LABEL),
        Text::PlacementLabel => pattern(PLACEMENT_LABEL),
        Text::Identifier => pattern(IDENTIFIER),
        Text::Size => pattern(SIZE),
        Text::Duration => pattern(DURATION),
        Text::FileMode => pattern(FILE_MODE),
        Text::MigProfile => pattern(MIG_PROFILE),
        Text::RestartPolicy => json!({ "enum": RESTART_POLICIES }),
        Text::Path => json!({
            "type": "string",
            "minLength": 1,
            "not": { "pattern": PARENT_SEGMENT },
        }),
        Text::AbsolutePath => json!({
            "type": "string",
            "pattern": "^/",
            "not": { "pattern": PARENT_SEGMENT },
        }),
        Text::UrlPath => pattern("^/"),
    })
}

fn pattern(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

fn object_of(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => Map::from_iter([("const".to_owned(), other)]),
    }
}
