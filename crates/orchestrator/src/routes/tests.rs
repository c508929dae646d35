//! Who may call what. Every route needs a row here: a route without one fails the
//! test, as does a row without a route.

use std::collections::BTreeSet;

use axum::{
    Router,
    body::Body,
    http::{
        Request, StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, SET_COOKIE},
    },
};
use fuse_control::{Control, Settings};
use fuse_store::{Store, Vault};
use fuse_wire_api::Scope;
use http_body_util::BodyExt as _;
use tempfile::TempDir;
use tower::ServiceExt as _;

use super::*;
use crate::http::{Auth, router};

const MASTER: &str = "master-token";
const MISSING: &str = "missing or malformed credentials";
const INVALID: &str = "invalid token";

const EXEC: &str = "exec requires the master token";
const ATTACH: &str = "attach requires the master token";
const REGISTER: &str = "host registration requires the master token";
const MUTATE: &str = "host mutations require the master token";
const REMOVE: &str = "host removal requires the master token";
const KEYS: &str = "API key management requires the master token";

const AUDIT: &str = "the audit log requires the master token";
const EVENTS: &str = "the fleet's events require the master token";
const DEAD: &str = "dead letters require the master token";

/// A call of a route: with the master token, an empty body and nothing in the store it
/// answers `status`.
struct Row {
    method: &'static str,
    pattern: &'static str,
    path: &'static str,
    status: u16,
    /// What an API key is told; `None`: the same as the master.
    key: Option<&'static str>,
    /// What an API key with every scope is told.
    scoped: Option<&'static str>,
}

const fn any(method: &'static str, pattern: &'static str, path: &'static str, status: u16) -> Row {
    Row {
        method,
        pattern,
        path,
        status,
        key: None,
        scoped: None,
    }
}

impl Row {
    /// Keys are refused with this text, whatever their scopes.
    const fn master(mut self, refusal: &'static str) -> Self {
        self.key = Some(refusal);
        self.scoped = Some(refusal);
        self
    }

    /// Keys are refused with this text unless they have the scope.
    const fn scope(mut self, refusal: &'static str) -> Self {
        self.key = Some(refusal);
        self
    }
}

const ROWS: &[Row] = &[
    any("GET", "/v1/environments", "/v1/environments", 200),
    any("POST", "/v1/environments", "/v1/environments", 400),
    any("GET", "/v1/environments/{vmId}", "/v1/environments/x", 404),
    any("POST", "/v1/environments/{vmId}", "/v1/environments/x", 400),
    any(
        "POST",
        "/v1/environments/{vmId}",
        "/v1/environments/x?action=exec",
        400,
    )
    .scope(EXEC),
    any(
        "POST",
        "/v1/environments/{vmId}",
        "/v1/environments/x?action=drain",
        404,
    ),
    any(
        "POST",
        "/v1/environments/{vmId}",
        "/v1/environments/x?action=fork",
        404,
    ),
    any(
        "POST",
        "/v1/environments/{vmId}",
        "/v1/environments/x?action=rotate-token",
        404,
    ),
    any(
        "DELETE",
        "/v1/environments/{vmId}",
        "/v1/environments/x",
        404,
    ),
    any(
        "GET",
        "/v1/environments/{vmId}/events",
        "/v1/environments/x/events",
        404,
    ),
    any("GET", "/v1/events", "/v1/events", 200).master(EVENTS),
    any(
        "GET",
        "/v1/environments/{vmId}/attach",
        "/v1/environments/x/attach",
        400,
    )
    .scope(ATTACH),
    any(
        "POST",
        "/v1/environments/{vmId}",
        "/v1/environments/x?action=migrate",
        404,
    ),
    any(
        "POST",
        "/v1/environments/{vmId}/computer",
        "/v1/environments/x/computer",
        400,
    ),
    any(
        "GET",
        "/v1/environments/{vmId}/computer",
        "/v1/environments/x/computer",
        404,
    ),
    any(
        "GET",
        "/v1/environments/{vmId}/computer/stream",
        "/v1/environments/x/computer/stream",
        400,
    ),
    any(
        "POST",
        "/v1/environments/{vmId}/snapshots",
        "/v1/environments/x/snapshots",
        404,
    ),
    any("GET", "/v1/snapshots", "/v1/snapshots", 200),
    any("GET", "/v1/snapshots/resolve", "/v1/snapshots/resolve", 400),
    any("GET", "/v1/snapshots/{snapshotId}", "/v1/snapshots/x", 404),
    any("POST", "/v1/snapshots/{snapshotId}", "/v1/snapshots/x", 400),
    any(
        "POST",
        "/v1/snapshots/{snapshotId}",
        "/v1/snapshots/x?action=restore",
        404,
    ),
    any(
        "DELETE",
        "/v1/snapshots/{snapshotId}",
        "/v1/snapshots/x",
        404,
    ),
    any("GET", "/v1/tasks/{id}", "/v1/tasks/x", 404),
    any("GET", "/v1/tasks/{id}/logs", "/v1/tasks/x/logs", 404),
    any(
        "GET",
        "/v1/environments/{vmId}/logs",
        "/v1/environments/x/logs",
        404,
    ),
    any("GET", "/v1/hosts", "/v1/hosts", 200),
    any("POST", "/v1/hosts", "/v1/hosts", 400).master(REGISTER),
    any("GET", "/v1/hosts/{hostId}", "/v1/hosts/x", 404),
    any("POST", "/v1/hosts/{hostId}", "/v1/hosts/x", 400).master(MUTATE),
    any(
        "POST",
        "/v1/hosts/{hostId}",
        "/v1/hosts/x?action=cordon",
        404,
    )
    .master(MUTATE),
    any(
        "POST",
        "/v1/hosts/{hostId}",
        "/v1/hosts/x?action=uncordon",
        404,
    )
    .master(MUTATE),
    any(
        "POST",
        "/v1/hosts/{hostId}",
        "/v1/hosts/x?action=drain",
        404,
    )
    .master(MUTATE),
    any(
        "POST",
        "/v1/hosts/{hostId}",
        "/v1/hosts/x?action=probe",
        404,
    )
    .master(MUTATE),
    any("DELETE", "/v1/hosts/{hostId}", "/v1/hosts/x", 404).master(REMOVE),
    any(
        "POST",
        "/v1/placement/explain",
        "/v1/placement/explain",
        400,
    ),
    any("GET", "/v1/api-keys", "/v1/api-keys", 200).master(KEYS),
    any("POST", "/v1/api-keys", "/v1/api-keys", 201).master(KEYS),
    any("DELETE", "/v1/api-keys/{id}", "/v1/api-keys/x", 404).master(KEYS),
    any("GET", "/v1/audit", "/v1/audit", 200).master(AUDIT),
    any("GET", "/v1/dead-letters", "/v1/dead-letters", 200).master(DEAD),
];

/// The routes without a credential, and what they answer to an empty body.
const PUBLIC: &[(&str, &str, u16)] = &[("POST", "/login", 400), ("POST", "/logout", 204)];

/// A surface over a store that keeps keys, and credentials for it.
struct Surface {
    router: Router,
    key: String,
    scoped: String,
    revoked: String,
    cookie: String,
    _dir: TempDir,
}

impl Surface {
    async fn new(auth: Auth) -> Self {
        let dir = TempDir::new().unwrap();
        let url = format!("sqlite://{}/fuse.db", dir.path().display());
        let store = Store::open(Some(&url), Vault::none()).await.unwrap();
        let control = Control::new(store, Settings::default()).unwrap();
        let mut keys = Vec::new();
        for scopes in [&[][..], &Scope::ALL, &Scope::ALL] {
            keys.push(control.api_key_create(String::new(), scopes).await.unwrap());
        }
        let [key, scoped, revoked]: [_; 3] = keys.try_into().unwrap();
        control.api_key_revoke(&revoked.record.id).await.unwrap();
        let bearer = |key: fuse_control::MintedKey| format!("Bearer {}", key.raw.expose());
        let (key, scoped, revoked) = (bearer(key), bearer(scoped), bearer(revoked));
        let router = router(App::new(control, auth));
        let cookie = log_in(&router).await;
        Self {
            router,
            key,
            scoped,
            revoked,
            cookie,
            _dir: dir,
        }
    }
}

async fn in_memory(auth: Auth) -> Router {
    let store = Store::open(None, Vault::none()).await.unwrap();
    router(App::new(
        Control::new(store, Settings::default()).unwrap(),
        auth,
    ))
}

async fn log_in(router: &Router) -> String {
    let request = Request::post("/login")
        .body(Body::from(format!(r#"{{"token":"{MASTER}"}}"#)))
        .unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let cookie = response.headers().get(SET_COOKIE);
    let text = cookie.map_or("", |cookie| cookie.to_str().unwrap());
    text.split(';').next().unwrap().to_owned()
}

async fn call(
    router: &Router,
    (method, path): (&str, &str),
    authorization: Option<&str>,
    cookie: Option<&str>,
) -> (StatusCode, String) {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(value) = authorization {
        request = request.header(AUTHORIZATION, value);
    }
    if let Some(value) = cookie {
        request = request.header(COOKIE, value);
    }
    let request = request.body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    if response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|value| value == "text/event-stream")
    {
        // It would go on for ever.
        return (status, String::new());
    }
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn unauthorized(message: &str) -> String {
    format!(r#"{{"error":{{"code":"unauthorized","message":"{message}"}}}}"#)
}

#[test]
fn every_route_has_a_row() {
    let routes: BTreeSet<(String, &str)> = table()
        .into_iter()
        .map(|route| (route.method.to_string(), route.path))
        .collect();
    let rows: BTreeSet<(String, &str)> = ROWS
        .iter()
        .map(|row| (row.method.to_owned(), row.pattern))
        .collect();
    assert_eq!(routes, rows);
    let public: Vec<(String, &str)> = public()
        .into_iter()
        .map(|route| (route.method.to_string(), route.path))
        .collect();
    let rows: Vec<(String, &str)> = PUBLIC
        .iter()
        .map(|(method, path, _)| ((*method).to_owned(), *path))
        .collect();
    assert_eq!(public, rows);
}

/// Access as the OpenAPI document says it, next to what the row of the action says.
#[test]
fn every_action_has_a_row_and_the_document_says_who_may() {
    let document = crate::openapi::document();
    let mut documented = BTreeSet::new();
    for (pattern, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let mut calls = vec![(String::new(), operation)];
            if let Some(actions) = operation["x-actions"].as_array() {
                let named =
                    |action: &serde_json::Value| action["action"].as_str().unwrap().to_owned();
                calls = actions
                    .iter()
                    .map(|action| (named(action), action))
                    .collect();
            }
            for (action, call) in calls {
                let end = format!("?action={action}");
                let is_it = |row: &&Row| {
                    row.method.eq_ignore_ascii_case(method)
                        && row.pattern == pattern
                        && (action.is_empty() || row.path.ends_with(&end))
                };
                let access = call["x-access"].as_str().unwrap();
                let Some(row) = ROWS.iter().find(is_it) else {
                    assert_eq!(access, "public", "{method} {pattern} {action} has no row");
                    continue;
                };
                let want = match (row.key, row.scoped) {
                    (None, None) => "any",
                    (Some(_), Some(_)) => "master",
                    (Some(_), None) => "master or scope",
                    (None, Some(_)) => unreachable!("a scope takes nothing away"),
                };
                assert!(
                    access.starts_with(want),
                    "{method} {pattern} {action}: {access}"
                );
                documented.insert((pattern.clone(), action));
            }
        }
    }
    for row in ROWS {
        let Some((_, action)) = row.path.split_once("?action=") else {
            continue;
        };
        let row = (row.pattern.to_owned(), action.to_owned());
        assert!(documented.contains(&row), "{row:?} is not in the document");
    }
}

#[tokio::test]
async fn who_may_call_what() {
    let surface = Surface::new(Auth::master(MASTER)).await;
    let master = format!("Bearer {MASTER}");
    for row in ROWS {
        let route = (row.method, row.path);
        let name = format!("{} {}", row.method, row.path);
        for (authorization, cookie, message) in [
            (None, None, MISSING),
            (Some("Basic master-token"), None, MISSING),
            (Some("bearer master-token"), None, MISSING),
            (Some("nonsense"), Some(&*surface.cookie), MISSING),
            (None, Some("fuse_session="), MISSING),
            (Some("Bearer wrong"), None, INVALID),
            (Some("Bearer wrong"), Some(&*surface.cookie), INVALID),
            (Some(&*surface.revoked), None, INVALID),
            (Some("Bearer fuse_sk_wrong"), None, INVALID),
            (None, Some("fuse_session=v1.9999999999.00.00"), INVALID),
        ] {
            let (status, body) = call(&surface.router, route, authorization, cookie).await;
            assert_eq!(status, 401, "{name} {authorization:?}");
            assert_eq!(body, unauthorized(message), "{name} {authorization:?}");
        }
        let token_as_cookie = format!("fuse_session={MASTER}");
        for (authorization, cookie, refusal) in [
            (Some(&*master), None, None),
            (None, Some(&*surface.cookie), None),
            (None, Some(&*token_as_cookie), None),
            (Some(&*surface.key), None, row.key),
            (Some(&*surface.scoped), None, row.scoped),
        ] {
            let (status, body) = call(&surface.router, route, authorization, cookie).await;
            match refusal {
                None => assert_eq!(status, row.status, "{name}: {body}"),
                Some(refusal) => {
                    assert_eq!(status, 403, "{name}: {body}");
                    assert_eq!(body, unauthorized(refusal), "{name}");
                }
            }
        }
    }
    for (method, path, status) in PUBLIC {
        for authorization in [None, Some("Bearer wrong")] {
            let (got, body) = call(&surface.router, (method, path), authorization, None).await;
            assert_eq!(got, *status, "{method} {path}: {body}");
        }
    }
}

#[tokio::test]
async fn without_a_master_token_keys_get_in_and_nobody_is_the_master() {
    let surface = Surface::new(Auth::without_master()).await;
    assert_eq!(surface.cookie, "");
    for row in ROWS {
        let route = (row.method, row.path);
        let (status, _) = call(&surface.router, route, Some("Bearer anything"), None).await;
        assert_eq!(status, 401, "{route:?}");
        let (status, _) = call(&surface.router, route, Some(&surface.key), None).await;
        let want = row.key.map_or(row.status, |_| 403);
        assert_eq!(status, want, "{route:?}");
    }
    let (status, body) = call(&surface.router, ("POST", "/login"), None, None).await;
    assert_eq!(status, 401);
    assert!(body.contains("ORCH_AUTH_TOKEN"), "{body}");
}

#[tokio::test]
async fn without_token_and_durable_store_everybody_is_the_master() {
    let router = in_memory(Auth::without_master()).await;
    for row in ROWS.iter().filter(|row| !api_key::is_of_keys(row.pattern)) {
        let route = (row.method, row.path);
        for authorization in [None, Some("Bearer anything"), Some("nonsense")] {
            let (status, body) = call(&router, route, authorization, None).await;
            assert_eq!(status, row.status, "{route:?}: {body}");
        }
    }
    // The body is not even read, and there is nothing to have a cookie for.
    assert_eq!(call(&router, ("POST", "/login"), None, None).await.0, 204);
    assert_eq!(log_in(&router).await, "");
}

#[tokio::test]
async fn keys_need_a_durable_store() {
    let router = in_memory(Auth::master(MASTER)).await;
    let master = format!("Bearer {MASTER}");
    for route in [
        ("GET", "/v1/api-keys"),
        ("POST", "/v1/api-keys"),
        ("PATCH", "/v1/api-keys"),
        ("DELETE", "/v1/api-keys/x"),
    ] {
        for authorization in [None, Some("Bearer wrong"), Some(&*master)] {
            let (status, body) = call(&router, route, authorization, None).await;
            assert_eq!(status, 404, "{route:?}");
            assert!(body.contains(r#""code":"route_not_found""#), "{body}");
            assert!(body.contains("DATABASE_URL"), "{body}");
            assert!(
                body.contains(r#""details":{"reason":"api_keys_disabled"}"#),
                "{body}"
            );
        }
    }
}

#[tokio::test]
async fn probes_and_missing_routes_need_no_credential() {
    let router = in_memory(Auth::master(MASTER)).await;
    let get = async |path| call(&router, ("GET", path), None, None).await;
    assert_eq!(get("/health").await.0, 200);
    assert_eq!(get("/v1/version").await.0, 200);
    // Recovery does not run in this test.
    assert_eq!(get("/ready").await.0, 503);
    let (status, body) = get("/v1/nope").await;
    assert_eq!(status, 404);
    assert_eq!(
        body,
        r#"{"error":{"code":"route_not_found","message":"no such route: GET /v1/nope"}}"#
    );
    let (status, body) = call(&router, ("PATCH", "/v1/environments/x"), None, None).await;
    assert_eq!(status, 405);
    assert!(body.contains("route_not_found"), "{body}");
}
