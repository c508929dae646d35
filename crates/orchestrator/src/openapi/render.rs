//! From what is written down of a route to its OpenAPI operation.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::operation::{Answer, Call, Content, Does, Operation, Type, entry};
use crate::routes::Access;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// Where a route is mounted and who may call it.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// In front of everything: no request id, no allowlist, no credential.
    Outer,
    /// Behind the allowlist, without a credential.
    Public,
    /// Behind authentication.
    Table(Access),
}

impl Place {
    pub(super) fn access(self, call: &Call) -> String {
        match (self, call.scope) {
            (Self::Outer | Self::Public, _) => "public".to_owned(),
            (Self::Table(Access::Master(_)), _) => "master".to_owned(),
            (Self::Table(Access::Any), Some(scope)) => format!("master or scope {scope}"),
            (Self::Table(Access::Any), None) => "any".to_owned(),
        }
    }
}

/// The operation as OpenAPI has it.
pub(super) fn operation(operation: &Operation, place: Place) -> Value {
    let mut out = Map::new();
    out.insert("tags".to_owned(), json!([operation.tag]));
    out.insert("operationId".to_owned(), json!(operation.id));
    match &operation.does {
        Does::One(call) => {
            let call = with_common_errors(call, operation, place);
            out.extend(described(&call, place));
            insert_unless_empty(&mut out, "parameters", parameters(operation, &[]));
            if let Some(body) = request_body(&[&call]) {
                out.insert("requestBody".to_owned(), body);
            }
            out.insert("responses".to_owned(), responses(&[&call], place));
        }
        Does::Actions(actions) => {
            let calls: Vec<(&str, Call)> = actions
                .iter()
                .map(|(name, call)| (*name, with_common_errors(call, operation, place)))
                .collect();
            let names: Vec<&str> = calls.iter().map(|(name, _)| *name).collect();
            let list: Vec<&Call> = calls.iter().map(|(_, call)| call).collect();
            out.insert("summary".to_owned(), json!(summary_of(&calls)));
            insert_unless_empty(&mut out, "parameters", parameters(operation, &names));
            if let Some(body) = request_body(&list) {
                out.insert("requestBody".to_owned(), body);
            }
            out.insert("responses".to_owned(), responses(&list, place));
            let each = calls.iter().map(|(name, call)| action(name, call, place));
            out.insert("x-actions".to_owned(), each.collect());
        }
    }
    out.insert("security".to_owned(), security(place));
    Value::Object(out)
}

fn summary_of(calls: &[(&str, Call)]) -> String {
    let names: Vec<String> = calls.iter().map(|(name, _)| format!("`{name}`")).collect();
    format!("What `action` asks for: {}", names.join(", "))
}

/// An `?action=` on its own: OpenAPI knows one operation per path and method.
fn action(name: &str, call: &Call, place: Place) -> Value {
    let mut out = Map::new();
    out.insert("action".to_owned(), json!(name));
    out.extend(described(call, place));
    if let Some(body) = request_body(&[call]) {
        out.insert("requestBody".to_owned(), body);
    }
    out.insert("responses".to_owned(), responses(&[call], place));
    Value::Object(out)
}

fn described(call: &Call, place: Place) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("summary".to_owned(), json!(call.summary));
    if !call.description.is_empty() {
        out.insert("description".to_owned(), json!(call.description));
    }
    out.insert("x-access".to_owned(), json!(place.access(call)));
    out
}

/// The errors that follow from where a route is and what it takes.
fn with_common_errors(call: &Call, operation: &Operation, place: Place) -> Call {
    let mut call = call.clone();
    if let Place::Outer = place {
        return call;
    }
    if let Some(body) = &call.body {
        let required = body.required;
        call = call.error(
            400,
            "invalid_argument",
            "the body is not the JSON that is expected",
        );
        if required {
            call = call.error(400, "invalid_argument", "the body is absent or empty");
        }
        call = call.error(413, "payload_too_large", "the body is over its limit");
    }
    if operation.parameters.iter().any(|p| p.name == "cursor") {
        call = call.error(400, "invalid_argument", "`invalid pagination cursor`");
    }
    if let Does::Actions(_) = operation.does {
        call = call.error(400, "invalid_argument", "`action` is missing or unknown");
    }
    if operation.path.contains('{') {
        call = call.error(404, "route_not_found", "the id in the path is empty");
    }
    if let Place::Table(access) = place {
        call = call.error(
            401,
            "unauthorized",
            "no credential, or one that is not known",
        );
        if matches!(access, Access::Master(_)) || call.scope.is_some() {
            call = call.error(403, "unauthorized", "an API key may not do this");
        }
        call = call.error(503, "unavailable", "the state store does not answer");
    }
    call.error(
        403,
        "forbidden",
        "the source address is not in the allowlist",
    )
    .error(500, "internal", "the reason is in the orchestrator's log")
}

fn security(place: Place) -> Value {
    match place {
        Place::Outer | Place::Public => json!([]),
        Place::Table(_) => json!([{"bearer": []}, {"session": []}]),
    }
}

fn parameters(operation: &Operation, actions: &[&str]) -> Vec<Value> {
    let mut out: Vec<Value> = operation
        .path_names()
        .map(|name| {
            json!({
                "name": name, "in": "path", "required": true,
                "description": operation.subject,
                "schema": {"type": "string", "minLength": 1},
            })
        })
        .collect();
    if !actions.is_empty() {
        out.push(json!({
            "name": "action", "in": "query", "required": true,
            "description": "What to do.",
            "schema": {"type": "string", "enum": actions},
        }));
    }
    out.extend(operation.parameters.iter().map(|parameter| {
        let mut described = json!({
            "name": parameter.name, "in": parameter.place, "required": parameter.example.is_some(),
            "description": parameter.description,
            "schema": {"type": "string"},
        });
        if let Some(example) = parameter.example {
            described["example"] = json!(example);
        }
        described
    }));
    out
}

fn request_body(calls: &[&Call]) -> Option<Value> {
    let bodies: Vec<_> = calls.iter().filter_map(|call| call.body.as_ref()).collect();
    let first = bodies.first()?;
    // A verb without a body beside one with: none is needed.
    let required = bodies.len() == calls.len() && bodies.iter().all(|body| body.required);
    let limit = bodies.iter().map(|body| body.limit).max();
    let mut content = Map::new();
    content.insert(
        "schema".to_owned(),
        any_of(bodies.iter().map(|body| &body.schema)),
    );
    if let [only] = bodies[..] {
        content.insert("example".to_owned(), only.example.clone());
    }
    Some(json!({
        "description": format!("At most {} bytes.", limit.unwrap_or(first.limit)),
        "required": required,
        "content": {JSON: content},
    }))
}

fn any_of<'a>(types: impl Iterator<Item = &'a Type>) -> Value {
    let mut references: Vec<Value> = types.map(Type::reference).collect();
    references.dedup();
    match references.len() {
        1 => references.remove(0),
        _ => entry("anyOf", Value::Array(references)),
    }
}

fn responses(calls: &[&Call], place: Place) -> Value {
    let mut by_status: BTreeMap<u16, Value> = BTreeMap::new();
    let mut answers: BTreeMap<u16, Vec<&Answer>> = BTreeMap::new();
    for answer in calls.iter().flat_map(|call| &call.answers) {
        answers.entry(answer.status).or_default().push(answer);
    }
    for (status, list) in answers {
        by_status.insert(status, success(&list, place));
    }
    let mut errors: BTreeMap<u16, Vec<(&str, &str)>> = BTreeMap::new();
    for (status, list) in calls.iter().flat_map(|call| &call.errors) {
        let known = errors.entry(*status).or_default();
        for error in list {
            if !known.contains(error) {
                known.push(*error);
            }
        }
    }
    for (status, list) in errors {
        by_status.insert(status, failure(&list, place));
    }
    let named = by_status.into_iter().map(|(k, v)| (k.to_string(), v));
    Value::Object(named.collect())
}

fn success(answers: &[&Answer], place: Place) -> Value {
    let mut texts: Vec<&str> = answers.iter().map(|answer| answer.description).collect();
    texts.dedup();
    let mut headers = common_headers(place);
    for (name, description) in answers.iter().flat_map(|answer| &answer.headers) {
        let header = json!({"description": description, "schema": {"type": "string"}});
        headers.insert((*name).to_owned(), header);
    }
    let mut out = Map::new();
    out.insert("description".to_owned(), json!(texts.join(" ")));
    insert_unless_empty(&mut out, "headers", headers);
    insert_unless_empty(&mut out, "content", content(answers));
    Value::Object(out)
}

/// By media type.
fn content(answers: &[&Answer]) -> Map<String, Value> {
    let mut out = Map::new();
    let types: Vec<(&Type, &Value)> = answers
        .iter()
        .filter_map(|answer| match &answer.content {
            Content::Json(schema, example) => Some((schema, example)),
            Content::Nothing | Content::Text(..) | Content::Events(..) => None,
        })
        .collect();
    if let Some((_, example)) = types.first() {
        let schema = any_of(types.iter().map(|(schema, _)| *schema));
        let json = json!({"schema": schema, "example": example});
        out.insert(JSON.to_owned(), json);
    }
    for answer in answers {
        let (media, content) = match &answer.content {
            Content::Nothing | Content::Json(..) => continue,
            Content::Text(JSON, _) => (JSON, json!({"schema": {"type": "object"}})),
            Content::Text(media, example) => {
                let text = json!({"schema": {"type": "string"}, "example": example});
                (*media, text)
            }
            Content::Events(schema, example) => (EVENTS, events(schema, example)),
        };
        out.insert(media.to_owned(), content);
    }
    out
}

/// A stream as OpenAPI has it: the schema is that of one event.
fn events(schema: &Type, example: &Value) -> Value {
    let mut properties = Map::new();
    let mut record = Map::new();
    if let Some(id) = example.get("id") {
        let meaning = json!({"type": "string", "description": "For `Last-Event-ID`."});
        properties.insert("id".to_owned(), meaning);
        record.insert("id".to_owned(), id.clone());
    }
    properties.insert(
        "data".to_owned(),
        json!({
            "type": "string",
            "description": "The record, on one line.",
            "contentMediaType": JSON,
            "contentSchema": schema.reference(),
        }),
    );
    record.insert("data".to_owned(), json!(example.to_string()));
    let names: Vec<&String> = properties.keys().collect();
    let required = json!(names);
    json!({
        "schema": {"type": "object", "required": required, "properties": properties},
        "example": record,
    })
}

fn failure(errors: &[(&str, &str)], place: Place) -> Value {
    let texts: Vec<String> = errors
        .iter()
        .map(|(code, meaning)| format!("`{code}`: {meaning}"))
        .collect();
    let mut out = Map::new();
    out.insert("description".to_owned(), json!(texts.join("; ")));
    insert_unless_empty(&mut out, "headers", common_headers(place));
    let schema = json!({"schema": {"$ref": "#/components/schemas/ErrorEnvelope"}});
    out.insert("content".to_owned(), entry(JSON, schema));
    Value::Object(out)
}

fn common_headers(place: Place) -> Map<String, Value> {
    match place {
        Place::Outer => Map::new(),
        Place::Public | Place::Table(_) => ["X-Request-ID", "Server"]
            .into_iter()
            .map(|name| {
                let header = json!({"$ref": format!("#/components/headers/{name}")});
                (name.to_owned(), header)
            })
            .collect(),
    }
}

fn insert_unless_empty<T: Into<Value>>(out: &mut Map<String, Value>, key: &str, value: T) {
    let value = value.into();
    let empty = match &value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if !empty {
        out.insert(key.to_owned(), value);
    }
}
