//! The screen of a guest: what is checked before, and that there is none.

use reqwest::Method;
use serde_json::json;

use crate::support::{Options, Orchestrator, with_agent};

const COMPUTER: &str = "/v1/environments/fuse-a/computer";
const STREAM: &str = "/v1/environments/fuse-a/computer/stream";
const NONE: (u16, &str, &str) = (501, "unimplemented", "computer not supported by provider");

#[tokio::test]
async fn there_is_no_screen_yet() {
    let (fuse, _agent) = with_agent(Options::default()).await;
    let stream = |path: &str| {
        fuse.request(Method::GET, path)
            .header("Upgrade", "Fuse-VNC/1")
    };
    let act = json!({"action": "screenshot"});
    let missing = (404, "not_found", "vm fuse-a not found");
    for (status, code, message) in [missing, NONE] {
        fuse.post(COMPUTER, &act)
            .await
            .is_error(status, code, message);
        fuse.get(COMPUTER).await.is_error(status, code, message);
        let answer = Orchestrator::send(stream(STREAM)).await;
        answer.is_error(status, code, message);
        // What is there in the second round.
        fuse.create(&json!({"task_id": "a"})).await;
    }
    fuse.post("/v1/environments/fuse-a?action=drain", &json!({}))
        .await
        .is(200);
    let stopped = "vm not running: vm fuse-a is draining";
    fuse.get(COMPUTER).await.is_error(409, "conflict", stopped);
    fuse.stop().await;
}

#[tokio::test]
async fn requests_are_checked() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    for (body, message) in [
        ("", "invalid JSON body: the body is empty"),
        ("{}", "action is required"),
        (r#"{"action":""}"#, "action is required"),
    ] {
        let answer = fuse.post_raw(COMPUTER, body).await;
        answer.is_error(400, "invalid_argument", message);
    }
    let text = json!({"action": "type", "text": "x".repeat(1 << 20)});
    fuse.post(COMPUTER, &text).await.is_error(
        413,
        "payload_too_large",
        "computer action body too large",
    );
    fuse.get(STREAM).await.is_error(
        400,
        "invalid_argument",
        "the computer stream requires the header Upgrade: fuse-vnc/1",
    );
    fuse.stop().await;
}
