//! The control API over HTTP, on the machine that runs the tests.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use fuse_wire_guest::control::{ErrorBody, UploadResponse};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::*;
use crate::reaper::Reaper;

/// A guest without a reaper thread: these tests start no processes.
fn control(error: Option<&str>) -> Arc<Control> {
    let tasks = TaskTracker::new();
    let reaper = Reaper::idle();
    let (power, _) = mpsc::channel(1);
    Arc::new(Control {
        identity: Identity {
            vm_id: "vm-1".into(),
            boot_id: "boot-1".into(),
            error: error.map(str::to_owned),
        },
        executor: Executor::new(Arc::clone(&reaper), None, 1024, tasks.clone()),
        surface: Supervisor::start_task(reaper, None, &tasks),
        freezer: Arc::default(),
        bodies: Arc::new(Semaphore::new(64 * 1024)),
        power,
    })
}

async fn send(
    control: &Arc<Control>,
    method: Method,
    path: &str,
    body: impl Into<Body>,
) -> (StatusCode, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(body.into())
        .unwrap();
    let response = router(Arc::clone(control)).oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (
        status,
        serde_json::from_slice(&bytes).unwrap_or(Value::Null),
    )
}

fn error_text(body: Value) -> String {
    serde_json::from_value::<ErrorBody>(body).unwrap().error
}

#[tokio::test]
async fn status_tells_who_the_guest_is() {
    let (status, body) = send(&control(None), Method::GET, "/v1/status", "").await;
    assert_eq!(status, StatusCode::OK);
    let status: Status = serde_json::from_value(body).unwrap();
    assert_eq!(
        (status.vm_id.as_str(), status.boot_id.as_str()),
        ("vm-1", "boot-1")
    );
    assert_eq!(
        (status.generation, status.surface),
        (1, SurfaceStatus::default())
    );
}

#[tokio::test]
async fn many_files_arrive_in_one_call_and_the_first_failure_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let body = json!({"files": [
        {"path": path("a/b"), "content_b64": "aGk="},
        {"path": path("c"), "content_b64": "AAE=", "mode": "0700"},
    ]});
    let (status, body) = send(&control(None), Method::POST, "/v1/files", body.to_string()).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(
        serde_json::from_value::<UploadResponse>(body)
            .unwrap()
            .written,
        2
    );
    assert_eq!(std::fs::read(path("a/b")).unwrap(), b"hi");
    let body = json!({"files": [{"path": "relative", "content_b64": ""}]}).to_string();
    let (status, body) = send(&control(None), Method::POST, "/v1/files", body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(error_text(body).contains("not absolute"));
    let body = json!({"files": [{"path": path("c/d"), "content_b64": ""}]}).to_string();
    let (status, body) = send(&control(None), Method::POST, "/v1/files", body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(error_text(body).contains("cannot write"));
}

#[tokio::test]
async fn a_raw_file_is_streamed_whatever_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("big file");
    let query = format!(
        "/v1/file?mode=0600&path={}/big%20file",
        dir.path().display()
    );
    let content = vec![7; MAX_BODY + 1];
    let (status, body) = send(&control(None), Method::PUT, &query, content.clone()).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert!(std::fs::read(path).unwrap() == content);
}

const MAX_BODY: usize = fuse_wire_guest::control::MAX_BODY_BYTES;

#[tokio::test]
async fn bodies_are_bounded_and_their_content_is_not_repeated_in_errors() {
    let control = control(None);
    let large = format!("{{\"x\":\"{}\"}}", "a".repeat(MAX_BODY));
    let (status, body) = send(&control, Method::POST, "/v1/exec", large).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(error_text(body).contains("larger than"));
    let wrong = r#"{"cmd":"hunter2","timeout_ms":1}"#;
    let (status, body) = send(&control, Method::POST, "/v1/exec", wrong).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let text = error_text(body);
    assert!(
        text.contains("wrong type") && !text.contains("hunter2"),
        "{text}"
    );
    let (status, body) = send(&control, Method::POST, "/v1/exec", "{hunter2").await;
    assert_eq!(
        (status, error_text(body).contains("not JSON")),
        (StatusCode::BAD_REQUEST, true)
    );
}

#[tokio::test]
async fn an_unusable_guest_says_why_and_still_answers() {
    let control = control(Some("the base image has no usable /bin/sh"));
    let (status, body) = send(&control, Method::GET, "/v1/status", "").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body["error"], "the base image has no usable /bin/sh");
    let exec = json!({"cmd": ["true"], "timeout_ms": 1000}).to_string();
    let (status, body) = send(&control, Method::POST, "/v1/exec", exec).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(error_text(body).contains("/bin/sh"));
}

#[tokio::test]
async fn unknown_routes_and_impossible_times_are_refused_in_json() {
    let control = control(None);
    let (status, body) = send(&control, Method::GET, "/v2/nothing", "").await;
    assert_eq!(
        (status, error_text(body).contains("no such route")),
        (StatusCode::NOT_FOUND, true)
    );
    let (status, body) = send(&control, Method::GET, "/v1/exec", "").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    assert!(error_text(body).contains("method"));
    let (status, body) = send(&control, Method::PUT, "/v1/file?mode=0644", "x").await;
    assert_eq!(
        (status, error_text(body).contains("path=")),
        (StatusCode::BAD_REQUEST, true)
    );
    let (status, _) = send(&control, Method::POST, "/v1/clock", r#"{"unix_micros":-5}"#).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_command_to_attach_to_may_come_in_the_body() {
    let body = json!({"cmd": ["true"], "timeout_ms": "soon"}).to_string();
    let control = control(None);
    // As with a query, the upgrade is asked for first.
    let (status, answer) = send(&control, Method::POST, "/v1/attach", body.clone()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(error_text(answer).contains("fuse-attach/1"));
    let request = Request::post("/v1/attach")
        .header("upgrade", "fuse-attach/1")
        .body(Body::from(body))
        .unwrap();
    let response = router(control).oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = error_text(serde_json::from_slice(&bytes).unwrap());
    assert!(text.contains("wrong type"), "{text}");
}
