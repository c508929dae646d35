//! The OpenAPI 3.1 document: schemas from the wire types, access from the route table,
//! and what neither says from the tables of this module, an entry per route.
//!
//! It is served at `/openapi.json` and checked in as `docs/api/openapi.json`. A test
//! fails when a route is mounted without an entry here, or an entry has no route.

mod access;
mod computer;
mod environment;
mod host;
mod operation;
mod record;
mod render;
mod service;
mod snapshot;

use std::sync::LazyLock;

use axum::{
    http::header::CONTENT_TYPE,
    response::{IntoResponse as _, Response},
};
use fuse_wire_api::ErrorEnvelope;
use serde_json::{Map, Value, json};

use self::{
    operation::{Collected, Operation, Type},
    render::Place,
};
use crate::routes;

static TEXT: LazyLock<String> = LazyLock::new(|| document().to_string());

/// `GET /openapi.json`.
pub(crate) async fn serve() -> Response {
    ([(CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

fn operations() -> Vec<Operation> {
    [
        service::operations(),
        access::operations(),
        environment::operations(),
        environment::streams(),
        snapshot::operations(),
        computer::operations(),
        record::operations(),
        host::operations(),
        host::placement(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The whole document.
#[must_use]
pub fn document() -> Value {
    let operations = operations();
    let mut paths: Map<String, Value> = Map::new();
    for operation in &operations {
        let Some(place) = place(operation) else {
            continue;
        };
        let item = paths
            .entry(operation.path)
            .or_insert_with(|| Value::Object(Map::new()));
        item[operation.method.to_ascii_lowercase()] = render::operation(operation, place);
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Fuse", "version": "v1", "description": ABOUT},
        "servers": [{"url": "/", "description": "An orchestrator; it listens on port 8080."}],
        "tags": TAGS.map(|(name, about)| json!({"name": name, "description": about})),
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http", "scheme": "bearer",
                    "description": "The master token, or an API key.",
                },
                "session": {
                    "type": "apiKey", "in": "cookie", "name": fuse_wire_api::SESSION_COOKIE,
                    "description": "The cookie of `POST /login`; it stands for the master token. \
                        Looked at only when there is no `Authorization` header.",
                },
            },
            "headers": {
                "X-Request-ID": {
                    "description": "The request's own id if it is 1 to 128 letters, digits, \
                        dashes or underscores; else a new one. It is in the logs, too.",
                    "required": true,
                    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"},
                },
                "Server": {
                    "description": "`fuse-orchestrator/` and the release.",
                    "required": true,
                    "schema": {"type": "string"},
                },
            },
            "schemas": schemas(&operations),
        },
    })
}

/// Where the route of an operation is mounted; `None`: nowhere.
fn place(operation: &Operation) -> Option<Place> {
    let is_it = |route: &routes::Route| {
        route.method.as_str() == operation.method && route.path == operation.path
    };
    if let Some(route) = routes::table().iter().find(|route| is_it(route)) {
        return Some(Place::Table(route.access));
    }
    if routes::public().iter().any(is_it) {
        return Some(Place::Public);
    }
    routes::outer().iter().any(is_it).then_some(Place::Outer)
}

/// Every type that the operations mention, and those that these refer to, by name.
fn schemas(operations: &[Operation]) -> Value {
    let mut collected = Collected::new();
    (Type::of::<ErrorEnvelope>().collect)(&mut collected);
    for operation in operations {
        for known in operation.types() {
            (known.collect)(&mut collected);
        }
    }
    collected.sort_by(|(a, _), (b, _)| a.cmp(b));
    collected.dedup_by(|(a, _), (b, _)| a == b);
    // Schemas are plain records, which always serialise.
    let value = |schema| without_null(serde_json::to_value(schema).unwrap_or_default());
    let named = collected
        .into_iter()
        .map(|(name, schema)| (name, value(schema)));
    Value::Object(named.collect())
}

/// An unset field is absent, never `null`: what may be `null` for the types may be left
/// out on the wire.
fn without_null(value: Value) -> Value {
    match value {
        Value::Object(mut fields) => {
            if let Some(Value::Array(kinds)) = fields.get_mut("type") {
                kinds.retain(|kind| kind != "null");
                if let [only] = &mut kinds[..] {
                    let only = only.take();
                    fields.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(kinds)) = fields.get_mut("oneOf") {
                kinds.retain(|kind| kind["type"] != "null");
                if let [Value::Object(only)] = &mut kinds[..] {
                    let only = std::mem::take(only);
                    fields.shift_remove("oneOf");
                    fields.extend(only);
                }
            }
            let fields = fields.into_iter().map(|(k, v)| (k, without_null(v)));
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.into_iter().map(without_null).collect(),
        plain => plain,
    }
}

const TAGS: [(&str, &str); 7] = [
    ("Environments", "Create, watch, use and destroy microVMs."),
    (
        "Tasks",
        "What became of a task, also after its environment is gone.",
    ),
    ("Snapshots", "What environments were at a moment."),
    ("Hosts", "The machines that environments run on."),
    ("Access", "Sessions of browsers, and keys for applications."),
    ("Records", "What happened, and what was given up on."),
    (
        "Service",
        "Probes, identity, metrics. No credential, no allowlist.",
    ),
];

const ABOUT: &str = "\
The HTTP API of the Fuse orchestrator.

Bodies are JSON whatever their `Content-Type`; unknown fields are ignored, `null` means unset, and \
only the first JSON value of a body is read. Fields that are empty or zero are left out of answers \
unless they are listed as always there. Times are RFC 3339 in UTC.

Every answer that is not a 2xx, those of the Service group excepted, is an error envelope. Branch on its `code`, \
which never changes its meaning; the `message` is for people. A path that is none is a 404 \
`route_not_found`; a method that a path does not know is a 405 of the same code with an `Allow` header.

Lists come in pages: `next_cursor` is where the next one starts, and is absent on the last.

Access: `public` needs no credential, `any` the master token or a live API key, `master` the master \
token, `master or scope` the master token or an API key with that scope. A session cookie counts as the \
master token. An orchestrator with neither a master token nor a durable store lets everybody in as the \
master.";

#[cfg(test)]
mod tests;
