//! A request as YAML: the same keys in the same order as its JSON, two spaces a level, text of several lines as
//! literal blocks so that a script can be read.

use serde_json::Value;

use crate::yaml::{is_text, resolves_to_text};

/// `value` as a YAML document with a newline at the end.
pub(crate) fn render(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => node(&mut out, value, 0),
        Value::Array(list) if !list.is_empty() => node(&mut out, value, 0),
        scalar => {
            inline(&mut out, scalar, 0);
            out.push('\n');
        }
    }
    out
}

/// A non-empty map or list, its lines indented by `depth` levels. The first line's indent is already there
/// when it follows a `- `, which callers arrange by giving the text up to it.
fn node(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) => {
            for (index, (key, value)) in map.iter().enumerate() {
                if index > 0 || !out.ends_with("- ") {
                    indent(out, depth);
                }
                scalar_text(out, key);
                out.push(':');
                child(out, value, depth);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                if index > 0 || !out.ends_with("- ") {
                    indent(out, depth);
                }
                out.push_str("- ");
                if is_branch(value) {
                    node(out, value, depth + 1);
                } else {
                    inline(out, value, depth + 1);
                    out.push('\n');
                }
            }
        }
        _ => {}
    }
}

/// What follows a key.
fn child(out: &mut String, value: &Value, depth: usize) {
    if is_branch(value) {
        out.push('\n');
        node(out, value, depth + 1);
    } else {
        out.push(' ');
        inline(out, value, depth + 1);
        out.push('\n');
    }
}

fn is_branch(value: &Value) -> bool {
    match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    }
}

/// A value that starts on the line it is on; blocks are indented by `depth` levels.
fn inline(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::String(text) if fits_block(text) => block(out, text, depth.max(1)),
        Value::String(text) => scalar_text(out, text),
        other => out.push_str(&other.to_string()),
    }
}

/// Whether a literal block can hold `text` and is worth it.
fn fits_block(text: &str) -> bool {
    text.contains('\n') && is_text(text) && !text.starts_with('\n')
}

fn block(out: &mut String, text: &str, depth: usize) {
    out.push('|');
    if text.starts_with(' ') {
        out.push('2');
    }
    let body = text.trim_end_matches('\n');
    match text.len() - body.len() {
        0 => out.push('-'),
        1 => {}
        _ => out.push('+'),
    }
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            indent(out, depth);
            out.push_str(line);
        }
    }
}

/// Text on one line: plain where nobody can take it for anything else, else in double quotes.
fn scalar_text(out: &mut String, text: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./+=@% ".contains(c);
    if text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_'))
        && text.chars().all(plain)
        && !text.ends_with(' ')
        && resolves_to_text(text)
    {
        return out.push_str(text);
    }
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_text(c.encode_utf8(&mut [0; 4])) => out.push(c),
            c => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    out.push('"');
}

fn indent(out: &mut String, depth: usize) {
    out.push_str(&"  ".repeat(depth));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::yaml::to_json;

    #[test]
    fn layout() {
        let value = json!({
            "task_id": "tiny",
            "spec": {"cpus": 2, "labels": {"a": "b"}},
            "secrets": {},
            "script": "a\n  b\n\nc\n",
            "no_end": "a\nb",
            "two_ends": "a\nb\n\n",
            "indented": "  a\nb\n",
            "expose": [{"port": 80, "as": "web"}, {"port": 81}],
            "exec": ["/bin/x", "--fast", "", "yes", "5", "a\nb\n"],
            "empty": [],
            "odd": "a: b # c",
            "one": "a\n",
            "carriage": "a\r\nb",
        });
        insta::assert_snapshot!(render(&value));
    }

    fn values() -> impl Strategy<Value = Value> {
        let text = prop_oneof![
            "\\PC{0,12}",
            "[ \\na-c:#\\-|\\t\"'\\r\\u{85}\\u{2028}]{0,12}",
            "[0-9.eExX_-]{0,6}"
        ];
        let leaf = prop_oneof![
            text.prop_map(Value::from),
            any::<i32>().prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z ]{0,4}|null|\\PC{1,3}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn reading_it_gives_the_value_back(value in values()) {
            let text = render(&value);
            prop_assert_eq!(to_json(&text), Ok(value), "{}", text);
        }
    }
}
