//! Draining and rotating credentials, against a fake host.

use fuse_control::Settings;
use fuse_testkit::fake_agent::{FakeAgent, Step};
use fuse_wire_host::ExecResponse;
use serde_json::{Value, json};

use crate::support::{Options, Orchestrator, with_agent};

const DRAIN: &str = "/v1/environments/fuse-a?action=drain";
const ROTATE: &str = "/v1/environments/fuse-a?action=rotate-token";
const TOKEN_FILE: &str = "/fuse/auth-token";

async fn running(options: Options) -> (Orchestrator, FakeAgent) {
    let (fuse, agent) = with_agent(options).await;
    agent.serve_surfaces();
    let body = json!({
        "task_id": "a", "secrets": {"S": "hunter2hunter2"}, "expose": [{"port": 80, "as": "web"}]
    });
    fuse.create(&body).await.is(201);
    (fuse, agent)
}

async fn act(fuse: &Orchestrator, path: &str) -> crate::support::Answer {
    fuse.post_raw(path, "").await
}

/// Types of the audit entries about the environment, oldest first.
async fn audit(fuse: &Orchestrator) -> Vec<String> {
    let list = fuse
        .get("/v1/audit?entity_type=vm&entity_id=fuse-a&limit=200")
        .await
        .is(200);
    let events = list["audit_events"].as_array().unwrap();
    let kind = |event: &Value| event["type"].as_str().unwrap().to_owned();
    events.iter().rev().map(kind).collect()
}

#[tokio::test]
async fn a_drain_asks_the_workload_and_leaves_the_rest() {
    let (fuse, agent) = running(Options::default()).await;
    let events = fuse.events("fuse-a", None).await;
    let drained = act(&fuse, DRAIN).await.is(200);
    assert_eq!(drained["state"], "draining");
    assert_eq!(drained.get("error"), None);
    assert_eq!(agent.vms(), ["fuse-a"]);
    let audit = audit(&fuse).await;
    assert_eq!(audit[audit.len() - 2..], ["vm.draining", "vm.drained"]);
    // It keeps its share of the host, takes no commands, and there is no second drain.
    let host = fuse.get("/v1/hosts/h").await.is(200);
    assert_eq!(host["allocated"]["vm_count"], 1);
    act(&fuse, DRAIN)
        .await
        .is_error(409, "conflict", "vm not running: vm fuse-a is draining");
    act(&fuse, ROTATE).await.is_error(
        409,
        "conflict",
        "token rotation requires running: vm fuse-a is draining",
    );
    fuse.delete("/v1/environments/fuse-a").await.is(204);
    assert_eq!(
        events.states().await,
        ["running", "draining", "destroying", "destroyed"]
    );
    fuse.stop().await;
}

#[tokio::test]
async fn a_failed_drain_command_stays_visible() {
    let (fuse, agent) = running(Options::default()).await;
    agent.on_exec(|_| ExecResponse {
        exit_code: 3,
        stderr: b"cannot stop hunter2hunter2\n".to_vec(),
        ..ExecResponse::default()
    });
    let text = "drain command: exit status 3: cannot stop [REDACTED]";
    act(&fuse, DRAIN).await.is_error(500, "internal", text);
    let shown = fuse.get("/v1/environments/fuse-a").await.is(200);
    assert_eq!(
        (&shown["state"], &shown["error"]),
        (&json!("draining"), &json!(text))
    );
    assert_eq!(audit(&fuse).await.last().unwrap(), "vm.drain_failed");
    fuse.delete("/v1/environments/fuse-a").await.is(204);
    fuse.stop().await;
}

#[tokio::test]
async fn a_drain_without_a_vm_is_skipped() {
    let (fuse, agent) = running(Options::default()).await;
    agent.fail(Step::Exec, 1, 404, "vm not found");
    let drained = act(&fuse, DRAIN).await.is(200);
    assert_eq!(
        drained["error"],
        "drain command: there is no vm to run it in"
    );
    assert_eq!(audit(&fuse).await.last().unwrap(), "vm.drain_skipped");
    fuse.stop().await;
}

#[tokio::test]
async fn draining_is_stored_before_the_command_runs_and_a_destroy_takes_over() {
    let (fuse, agent) = running(Options::default()).await;
    let mut gate = agent.hold(Step::Exec);
    let draining = act(&fuse, DRAIN);
    let meanwhile = async {
        gate.reached().await;
        let shown = fuse.get("/v1/environments/fuse-a").await.is(200);
        assert_eq!(shown["state"], "draining");
        act(&fuse, DRAIN)
            .await
            .is_error(409, "conflict", "vm not running: vm fuse-a is draining");
        fuse.delete("/v1/environments/fuse-a").await.is(204);
        gate.open();
    };
    let (answer, ()) = tokio::join!(draining, meanwhile);
    assert_eq!(answer.status, 204, "{}", answer.text);
    fuse.stop().await;
}

#[tokio::test]
async fn rotated_credentials_are_in_force() {
    let (fuse, agent) = running(Options::default()).await;
    let old = agent.file("fuse-a", TOKEN_FILE).unwrap();
    let before = fuse.get("/v1/environments/fuse-a").await.is(200);
    act(&fuse, ROTATE).await.is(204);
    let new = agent.file("fuse-a", TOKEN_FILE).unwrap();
    assert_ne!(old, new);
    let stored = fuse
        .control
        .store()
        .environment_guest_token(&fuse_model::EnvironmentId::new("fuse-a"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(stored.expose().as_bytes(), new);
    let after = fuse.get("/v1/environments/fuse-a").await.is(200);
    assert_eq!(after["endpoints"], before["endpoints"]);
    assert_eq!(audit(&fuse).await.last().unwrap(), "vm.token_rotated");
    fuse.stop().await;
}

#[tokio::test]
async fn a_rotation_that_does_not_take_is_undone() {
    let (fuse, agent) = running(Options::default()).await;
    let old = agent.file("fuse-a", TOKEN_FILE).unwrap();
    agent.keep_credentials();
    act(&fuse, ROTATE).await.is_error(
        500,
        "internal",
        "token rotation: the guest agent still shows another certificate",
    );
    assert_eq!(agent.file("fuse-a", TOKEN_FILE).unwrap(), old);
    agent.fail(Step::StartAgent, 1, 500, "no room");
    let answer = act(&fuse, ROTATE).await;
    assert_eq!(answer.status, 500);
    assert!(answer.message().contains("no room"), "{}", answer.text);
    assert_eq!(agent.file("fuse-a", TOKEN_FILE).unwrap(), old);
    fuse.stop().await;
}

#[tokio::test]
async fn one_rotation_at_a_time() {
    let (fuse, agent) = running(Options::default()).await;
    let mut gate = agent.hold(Step::Upload);
    let first = act(&fuse, ROTATE);
    let second = async {
        gate.reached().await;
        let answer = act(&fuse, ROTATE).await;
        gate.open();
        answer
    };
    let (first, second) = tokio::join!(first, second);
    first.is(204);
    second.is_error(
        409,
        "conflict",
        "vm fuse-a is busy: another operation (rotate) is under way, try again in a moment",
    );
    fuse.stop().await;
}

#[tokio::test]
async fn without_a_key_there_is_nothing_to_rotate() {
    let options = Options {
        key: false,
        settings: Settings::default(),
        ..Options::default()
    };
    let (fuse, _agent) = running(options).await;
    act(&fuse, ROTATE).await.is_error(
        409,
        "conflict",
        "token rotation requires a 32-byte encryption key",
    );
    fuse.stop().await;
}
