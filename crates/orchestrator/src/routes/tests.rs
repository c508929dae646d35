//! Who may call what. Every route of the table needs a row here: a route without one
//! fails the test, as does a row without a route.

use std::collections::BTreeSet;

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header::AUTHORIZATION},
};
use fuse_control::{Control, Settings};
use fuse_store::{Store, Vault};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::*;
use crate::http::{Auth, router};

const MASTER: &str = "master-token";

/// Method, path of the table, a path to call, and the status that the master token
/// gets for it with an empty body and nothing in the store.
const ROWS: [(&str, &str, &str, u16); 12] = [
    ("GET", "/v1/environments", "/v1/environments", 200),
    ("POST", "/v1/environments", "/v1/environments", 400),
    ("GET", "/v1/environments/{id}", "/v1/environments/x", 404),
    (
        "POST",
        "/v1/environments/{id}",
        "/v1/environments/x?action=exec",
        400,
    ),
    ("DELETE", "/v1/environments/{id}", "/v1/environments/x", 404),
    (
        "GET",
        "/v1/environments/{id}/events",
        "/v1/environments/x/events",
        404,
    ),
    ("GET", "/v1/tasks/{id}", "/v1/tasks/x", 404),
    ("GET", "/v1/hosts", "/v1/hosts", 200),
    ("POST", "/v1/hosts", "/v1/hosts", 400),
    ("GET", "/v1/hosts/{id}", "/v1/hosts/x", 404),
    ("POST", "/v1/hosts/{id}", "/v1/hosts/x?action=cordon", 404),
    ("DELETE", "/v1/hosts/{id}", "/v1/hosts/x", 404),
];

async fn surface(auth: Auth) -> Router {
    let store = Store::open(None, Vault::none()).await.unwrap();
    router(App::new(
        Control::new(store, Settings::default()).unwrap(),
        auth,
    ))
}

async fn call(
    surface: &Router,
    method: &str,
    path: &str,
    authorization: Option<&str>,
) -> (StatusCode, String) {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(value) = authorization {
        request = request.header(AUTHORIZATION, value);
    }
    let request = request.body(Body::empty()).unwrap();
    let response = surface.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn every_route_has_a_row() {
    let routes: BTreeSet<(String, &str)> = table()
        .into_iter()
        .map(|route| (route.method.to_string(), route.path))
        .collect();
    let rows: BTreeSet<(String, &str)> = ROWS
        .iter()
        .map(|(method, path, _, _)| ((*method).to_owned(), *path))
        .collect();
    assert_eq!(routes, rows);
}

#[tokio::test]
async fn only_the_master_token_gets_in() {
    let surface = surface(Auth::master(MASTER)).await;
    let master = format!("Bearer {MASTER}");
    for (method, _, path, status) in ROWS {
        for (authorization, message) in [
            (None, "missing or malformed credentials"),
            (
                Some("Basic master-token"),
                "missing or malformed credentials",
            ),
            (
                Some("bearer master-token"),
                "missing or malformed credentials",
            ),
            (Some("Bearer wrong"), "invalid token"),
        ] {
            let (got, body) = call(&surface, method, path, authorization).await;
            assert_eq!(got, 401, "{method} {path} {authorization:?}");
            let want = format!(r#"{{"error":{{"code":"unauthorized","message":"{message}"}}}}"#);
            assert_eq!(body, want, "{method} {path} {authorization:?}");
        }
        let (got, body) = call(&surface, method, path, Some(&master)).await;
        assert_eq!(got, status, "{method} {path}: {body}");
    }
}

#[tokio::test]
async fn insecure_lets_everybody_in_and_closed_nobody() {
    let (insecure, closed) = (surface(Auth::Insecure).await, surface(Auth::Closed).await);
    for (method, _, path, status) in ROWS {
        assert_eq!(
            call(&insecure, method, path, None).await.0,
            status,
            "{method} {path}"
        );
        let (got, _) = call(&closed, method, path, Some("Bearer anything")).await;
        assert_eq!(got, 401, "{method} {path}");
    }
}

#[tokio::test]
async fn probes_and_missing_routes_need_no_credential() {
    let surface = surface(Auth::master(MASTER)).await;
    assert_eq!(call(&surface, "GET", "/health", None).await.0, 200);
    assert_eq!(call(&surface, "GET", "/v1/version", None).await.0, 200);
    // Recovery does not run in this test.
    assert_eq!(call(&surface, "GET", "/ready", None).await.0, 503);
    let (status, body) = call(&surface, "GET", "/v1/nope", None).await;
    assert_eq!(status, 404);
    assert_eq!(
        body,
        r#"{"error":{"code":"route_not_found","message":"no such route: GET /v1/nope"}}"#
    );
    let (status, body) = call(&surface, "PATCH", "/v1/environments/x", None).await;
    assert_eq!(status, 405);
    assert!(body.contains("route_not_found"), "{body}");
}
