//! `docs/api/README.md` out of the OpenAPI document: for people who read rather than
//! generate.

use std::fmt::Write as _;

use serde_json::{Map, Value};

const NOTE: &str =
    "<!-- Made from openapi.json by the tests of crates/orchestrator; do not edit. -->\n";

/// The page.
pub(crate) fn render(document: &Value) -> String {
    let mut page = Page(String::new());
    page.line(NOTE);
    page.line(&format!("# {}\n", text(&document["info"]["title"])));
    page.line(&format!("{}\n", text(&document["info"]["description"])));
    page.line(
        "The same for programs: [openapi.json](openapi.json), served at `GET /openapi.json`.\n",
    );
    for tag in items(&document["tags"]) {
        page.line(&format!("## {}\n", text(&tag["name"])));
        page.line(&format!("{}\n", text(&tag["description"])));
        for (path, method, operation) in operations(document) {
            if operation["tags"][0] == tag["name"] {
                page.operation(path, method, operation);
            }
        }
    }
    page.line("## Objects\n");
    page.line(
        "Fields marked *always* are in every object; others are left out when empty or zero.\n",
    );
    for (name, schema) in fields(&document["components"]["schemas"]) {
        page.schema(name, schema, document);
    }
    page.0.trim_end().to_owned() + "\n"
}

fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    fields(&document["paths"]).flat_map(|(path, item)| {
        fields(item).map(move |(method, operation)| (path, method, operation))
    })
}

struct Page(String);

impl Page {
    fn line(&mut self, line: &str) {
        // Writing to a string does not fail.
        writeln!(self.0, "{line}").unwrap();
    }

    fn operation(&mut self, path: &str, method: &str, operation: &Value) {
        let method = method.to_uppercase();
        let parameters: Vec<&Value> = items(&operation["parameters"])
            .filter(|parameter| parameter["name"] != "action")
            .collect();
        match operation.get("x-actions") {
            None => self.call(&method, path, operation, &parameters),
            Some(actions) => {
                for action in items(actions) {
                    let path = format!("{path}?action={}", text(&action["action"]));
                    // One that begins with the name of an action is that action's.
                    let of = format!("`{}`", text(&action["action"]));
                    let others = |parameter: &&&Value| {
                        let meaning = text(&parameter["description"]);
                        !meaning.starts_with('`') || meaning.starts_with(&of)
                    };
                    let own: Vec<&Value> = parameters.iter().filter(others).copied().collect();
                    self.call(&method, &path, action, &own);
                }
            }
        }
    }

    fn call(&mut self, method: &str, path: &str, call: &Value, parameters: &[&Value]) {
        self.line(&format!("### `{method} {path}`\n"));
        let (summary, access) = (text(&call["summary"]), text(&call["x-access"]));
        self.line(&format!("{summary}. Access: `{access}`.\n"));
        if let Some(description) = call["description"].as_str() {
            self.line(&format!("{description}\n"));
        }
        if !parameters.is_empty() {
            self.line("| parameter | in | meaning |\n| --- | --- | --- |");
            for parameter in parameters {
                self.parameter(parameter);
            }
            self.line("");
        }
        let body = &call["requestBody"];
        let json = &body["content"]["application/json"];
        if !body.is_null() {
            let need = if body["required"] == true {
                "required"
            } else {
                "optional"
            };
            let (kind, note) = (kind(&json["schema"]), text(&body["description"]));
            self.line(&format!("Body: {kind}, {need}. {note}\n"));
        }
        // What only takes a connection over is nothing for curl.
        if fields(&call["responses"]).any(|(status, _)| status.starts_with('2')) {
            let needed = needed(path, parameters);
            self.line(&curl(method, &needed, &json["example"], access == "public"));
        }
        self.answers(&call["responses"]);
    }

    fn parameter(&mut self, parameter: &Value) {
        let need = if parameter["required"] == true {
            ", required"
        } else {
            ""
        };
        let (name, place) = (text(&parameter["name"]), text(&parameter["in"]));
        let meaning = cell(text(&parameter["description"]));
        self.line(&format!("| `{name}` | {place}{need} | {meaning} |"));
    }

    fn answers(&mut self, responses: &Value) {
        let mut shown = None;
        self.line("| status | answer |\n| --- | --- |");
        for (status, response) in fields(responses) {
            let json = &response["content"]["application/json"];
            let kind = match &json["schema"] {
                Value::Null => String::new(),
                // Said once, at the top of the page.
                schema if schema["$ref"] == "#/components/schemas/ErrorEnvelope" => String::new(),
                schema => kind(schema) + " ",
            };
            self.line(&format!(
                "| {status} | {kind}{} |",
                cell(text(&response["description"]))
            ));
            let example =
                fields(&response["content"]).find_map(|(_, content)| content.get("example"));
            shown = shown.or(example);
        }
        self.line("");
        match shown {
            None => {}
            Some(Value::String(text)) => self.line(&format!("```text\n{}\n```\n", text.trim_end())),
            Some(value) => self.line(&format!("```json\n{value:#}\n```\n")),
        }
    }

    fn schema(&mut self, name: &str, schema: &Value, document: &Value) {
        self.line(&format!("### {name}\n"));
        self.line(&format!("{}\n", flat(text(&schema["description"]))));
        let mut rows = Vec::new();
        rows_of(schema, document, &mut rows);
        if rows.is_empty() {
            self.line(&format!("{}\n", kind(schema)));
            return;
        }
        self.line("| field | type | | meaning |\n| --- | --- | --- | --- |");
        for row in rows {
            self.line(&row);
        }
        self.line("");
    }
}

/// The fields of an object, with those of the objects that it extends.
fn rows_of(schema: &Value, document: &Value, rows: &mut Vec<String>) {
    // The fields of each form of it, one form after the other.
    let forms = items(&schema["oneOf"]).filter(|_| {
        // A form that is no object has no fields: then the type says more.
        items(&schema["oneOf"]).all(|form| !form["properties"].is_null())
    });
    for part in items(&schema["allOf"]).chain(forms) {
        let whole = part["$ref"]
            .as_str()
            .and_then(|target| document.pointer(&target[1..]));
        rows_of(whole.unwrap_or(part), document, rows);
    }
    for (field, value) in fields(&schema["properties"]) {
        let always = items(&schema["required"]).any(|name| name == field);
        let always = if always { "always " } else { "" };
        let meaning = cell(text(&value["description"]));
        rows.push(format!(
            "| `{field}` | {} | {always}| {meaning} |",
            kind(value)
        ));
    }
}

/// A type in a few words.
fn kind(schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.rsplit('/').next().unwrap_or_default();
        return format!("[`{name}`](#{})", name.to_lowercase());
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        let kinds: Vec<String> = items(&schema[key])
            .filter(|part| part["type"] != "null")
            .map(kind)
            .collect();
        if !kinds.is_empty() {
            return kinds.join(" or ");
        }
    }
    if !schema["enum"].is_null() {
        let names: Vec<String> = items(&schema["enum"])
            .map(|name| format!("`{}`", text(name)))
            .collect();
        return names.join(", ");
    }
    let base = match &schema["type"] {
        // With null: what is not null.
        Value::Array(types) => types
            .iter()
            .find(|name| *name != "null")
            .map_or("any", text),
        name => text(name),
    };
    match base {
        "array" => format!("array of {}", kind(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map of {}", kind(&schema["additionalProperties"]))
        }
        "object" => "object".to_owned(),
        _ => scalar(base, schema),
    }
}

fn scalar(base: &str, schema: &Value) -> String {
    let name = schema["format"].as_str().unwrap_or(base);
    match (&schema["minimum"], &schema["maximum"]) {
        (Value::Null, Value::Null) => name.to_owned(),
        (min, Value::Null) => format!("{name}, >= {min}"),
        (Value::Null, max) => format!("{name}, <= {max}"),
        (min, max) => format!("{name}, {min} to {max}"),
    }
}

/// The path with the parameters without which the call is refused.
fn needed(path: &str, parameters: &[&Value]) -> String {
    let mut path = path.to_owned();
    for parameter in parameters {
        if let Some(example) = parameter["example"].as_str() {
            let next = if path.contains('?') { '&' } else { '?' };
            write!(path, "{next}{}={example}", text(&parameter["name"])).unwrap();
        }
    }
    path
}

fn curl(method: &str, path: &str, example: &Value, public: bool) -> String {
    let path = path
        .split('{')
        .enumerate()
        .map(|(n, part)| match part.split_once('}') {
            Some((_, rest)) if n > 0 => format!("ID{rest}"),
            _ => part.to_owned(),
        })
        .collect::<String>();
    let verb = if method == "GET" {
        String::new()
    } else {
        format!("-X {method} ")
    };
    let auth = if public {
        ""
    } else {
        " -H \"Authorization: Bearer $FUSE_TOKEN\""
    };
    let body = match example {
        Value::Null => String::new(),
        example => format!(" \\\n  -d '{example}'"),
    };
    format!("```sh\ncurl {verb}\"$FUSE_URL{path}\"{auth}{body}\n```\n")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    flat(text).replace('|', "\\|")
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn fields(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let fields: Option<&Map<String, Value>> = value.as_object();
    fields
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), value))
}
