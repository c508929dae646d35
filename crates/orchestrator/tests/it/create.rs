//! Creates on a host: what the guest gets, what a failed step leaves (nothing), what a
//! caller that goes away changes (nothing).

use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fuse_testkit::fake_agent::{FakeAgent, Step};
use fuse_wire_host::ExecResponse;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Options, Orchestrator, with_agent};

fn full_request() -> Value {
    let manifest = r#"{"machine":{"env":{"KEY":{"secret":"S"}}},"services":{"db":{"image":"i"}}}"#;
    json!({
        "task_id": "a",
        "spec": {"cpus": 2, "ram_mb": 1024, "storage_gb": 5},
        "manifest_inline": BASE64_STANDARD.encode(manifest),
        "secrets": {"S": "se cret"},
        "files": {"/work/x": {"content": BASE64_STANDARD.encode("hi"), "mode": "0755"}},
        "startup_script": "echo hi",
        "expose": [{"port": 8080, "as": "web"}, {"port": 53, "protocol": "udp"}],
        "healthcheck": {"http": {"port": 8080}},
        "desktop": {"width": 800, "height": 600},
    })
}

async fn allocated(fuse: &Orchestrator) -> Value {
    fuse.get("/v1/hosts/h").await.is(200)["allocated"].clone()
}

const NOTHING: &str = r#"{"cpus":0,"ram_mb":0,"storage_gb":0,"vm_count":0}"#;

#[tokio::test]
async fn a_create_makes_the_guest_as_asked() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let made = fuse.create(&full_request()).await.is(201);
    assert_eq!(made["host_id"], "h");
    assert_eq!(made["url"], "203.0.113.1:19551");
    assert_eq!(
        made["endpoints"],
        json!([
            {"as": "web", "url": "203.0.113.1:32000", "port": 8080},
            {"url": "203.0.113.1:32001", "protocol": "udp", "port": 53},
        ])
    );
    let mut order: Vec<String> = agent
        .calls()
        .into_iter()
        .filter(|call| call.ends_with("fuse-a"))
        .collect();
    // The script, the services, and readings of what they report.
    order.dedup();
    assert_eq!(
        order,
        [
            "create fuse-a",
            "upload fuse-a",
            "exec fuse-a",
            "start-agent fuse-a"
        ]
    );
    let file = |path: &str| String::from_utf8(agent.file("fuse-a", path).expect(path)).unwrap();
    assert_eq!(file("/fuse/secrets.json"), r#"{"S":"se cret"}"#);
    assert_eq!(file("/fuse/env"), "KEY='se cret'\n");
    assert_eq!(file("/fuse/healthcheck.json"), r#"{"http":{"port":8080}}"#);
    assert_eq!(file("/fuse/desktop.json"), r#"{"width":800,"height":600}"#);
    assert_eq!(file("/work/x"), "hi");
    assert_eq!(file("/fuse/auth-token").len(), 64);
    assert!(file("/fuse/compose.yaml").starts_with("services:\n"));
    assert!(file("/fuse/tls/cert.pem").starts_with("-----BEGIN CERTIFICATE-----\n"));
    assert!(file("/fuse/tls/key.pem").starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
    assert!(file("/fuse/manifest.json").contains("\"services\""));
    assert_eq!(
        agent.owner("fuse-a").unwrap(),
        fuse.control.store().fleet_id().as_str()
    );
    assert_eq!(
        allocated(&fuse).await,
        json!({"cpus": 2, "ram_mb": 1024, "storage_gb": 5, "vm_count": 1})
    );

    assert_eq!(fuse.delete("/v1/environments/fuse-a").await.status, 204);
    assert!(agent.vms().is_empty());
    assert_eq!(allocated(&fuse).await.to_string(), NOTHING);
    fuse.stop().await;
}

#[tokio::test]
async fn without_a_key_there_are_no_credentials() {
    let (fuse, agent) = with_agent(Options {
        key: false,
        ..Options::default()
    })
    .await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    assert!(agent.file("fuse-a", "/fuse/auth-token").is_none());
    assert!(agent.file("fuse-a", "/fuse/tls/cert.pem").is_none());
    assert!(agent.file("fuse-a", "/fuse/manifest.json").is_some());
    fuse.stop().await;
}

/// After a failed create: no VM, no record, no charge; the task and the stream say why.
async fn is_undone(fuse: &Orchestrator, agent: &FakeAgent, part: &str) {
    assert!(agent.vms().is_empty(), "{:?}", agent.vms());
    assert_eq!(fuse.get("/v1/environments/fuse-a").await.status, 404);
    assert_eq!(allocated(fuse).await.to_string(), NOTHING);
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(task["run_status"], "failed");
    assert!(
        task["last_error"].as_str().unwrap().contains(part),
        "{task}"
    );
}

#[tokio::test]
async fn every_step_that_fails_is_undone() {
    for (step, at_most_deletes) in [
        (Step::Create, 1),
        (Step::Upload, 1),
        (Step::Exec, 1),
        (Step::StartAgent, 1),
    ] {
        let (fuse, agent) = with_agent(Options::default()).await;
        agent.fail(step, 1, 500, "the disk is full");
        let answer = fuse.create(&full_request()).await;
        assert_eq!(
            (answer.status, answer.code()),
            (500, "internal"),
            "{step:?}: {}",
            answer.text
        );
        assert!(
            answer.message().contains("the disk is full"),
            "{}",
            answer.text
        );
        is_undone(&fuse, &agent, "the disk is full").await;
        let deletes = agent.count(Step::Delete, "fuse-a");
        let made = step != Step::Create;
        assert_eq!(deletes, if made { at_most_deletes } else { 0 }, "{step:?}");
        // The task can be tried again at once.
        fuse.create(&full_request()).await.is(201);
        fuse.stop().await;
    }
}

#[tokio::test]
async fn an_unreachable_agent_fails_the_create_and_leaves_nothing() {
    let (fuse, mut agent) = with_agent(Options::default()).await;
    agent.stop().await;
    let answer = fuse.create(&json!({"task_id": "a"})).await;
    assert_eq!((answer.status, answer.code()), (500, "internal"));
    assert!(answer.message().contains("unreachable"), "{}", answer.text);
    is_undone(&fuse, &agent, "unreachable").await;
    fuse.stop().await;
}

fn script_answer(exit_code: i32, stderr: &str, timed_out: bool) -> ExecResponse {
    ExecResponse {
        exit_code,
        stdout: b"built\0fine".to_vec(),
        stderr: stderr.as_bytes().to_vec(),
        timed_out,
        ..ExecResponse::default()
    }
}

#[tokio::test]
async fn a_failed_script_tells_why_without_secrets() {
    let (fuse, agent) = with_agent(Options::default()).await;
    agent.on_exec(|_| script_answer(90, "cannot log in with hunter2hunter2\n", false));
    let request = json!({
        "task_id": "a", "startup_script": "exit 90", "secrets": {"PW": "hunter2hunter2"}
    });
    let answer = fuse.create(&request).await;
    answer.is_error(
        400,
        "invalid_argument",
        "startup script failed in the build phase with exit status 90: cannot log in with [REDACTED]",
    );
    assert_eq!(
        answer.json["error"]["details"],
        json!({"exit_code": "90", "phase": "build"})
    );
    is_undone(&fuse, &agent, "[REDACTED]").await;
    let output = fuse.get("/v1/tasks/a").await.is(200)["output"].clone();
    assert_eq!(output["exit_code"], 90);
    assert_eq!(output["stdout"], "built\u{fffd}fine");
    assert_eq!(output["stderr"], "cannot log in with [REDACTED]\n");
    fuse.stop().await;
}

#[tokio::test]
async fn a_script_that_runs_out_of_time_is_a_bad_request() {
    let (fuse, agent) = with_agent(Options::default()).await;
    agent.on_exec(|_| script_answer(124, "still at it", true));
    let request = json!({
        "task_id": "a", "startup_script": "sleep 99", "startup_script_timeout_seconds": 7
    });
    fuse.create(&request).await.is_error(
        400,
        "invalid_argument",
        "startup script did not complete in time after 7s: still at it",
    );
    is_undone(&fuse, &agent, "in time").await;
    fuse.stop().await;
}

#[tokio::test]
async fn egress_through_a_proxy_is_refused_before_the_vm_exists() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let request = json!({"task_id": "a", "egress": {"mode": "proxy", "provider": "mock"}});
    let answer = fuse.create(&request).await;
    assert_eq!((answer.status, answer.code()), (501, "unimplemented"));
    is_undone(&fuse, &agent, "egress").await;
    assert_eq!(agent.count(Step::Create, "fuse-a"), 0);
    fuse.stop().await;
}

/// The token of an agent was changed behind the orchestrator's back.
#[tokio::test]
async fn an_agent_that_refuses_the_control_plane_is_named() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let is_named = |answer: &Answer| {
        assert_eq!((answer.status, answer.code()), (502, "unauthorized"));
        let text = format!(
            "host agent at {} rejected the token: register its host again, with the token that \
             the agent has now",
            agent.url()
        );
        assert!(answer.message().contains(&text), "{}", answer.text);
    };
    agent.fail(Step::Create, 1, 401, "unauthorized");
    is_named(&fuse.create(&json!({"task_id": "a"})).await);
    is_undone(&fuse, &agent, "rejected the token").await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    for (step, path, body) in [
        (Step::Exec, "?action=exec", json!({"cmd": ["true"]})),
        (Step::Snapshot, "/snapshots", json!({})),
    ] {
        agent.fail(step, 1, 401, "unauthorized");
        let path = format!("/v1/environments/fuse-a{path}");
        is_named(&fuse.post(&path, &body).await);
    }
    agent.fail(Step::Delete, 1, 401, "unauthorized");
    is_named(&fuse.delete("/v1/environments/fuse-a").await);
    fuse.stop().await;
}

#[tokio::test]
async fn a_leftover_of_ours_is_replaced_and_a_stranger_stays() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let fleet = fuse.control.store().fleet_id().to_string();
    agent.add_vm("fuse-a", Some(&fleet));
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    assert_eq!(agent.count(Step::Create, "fuse-a"), 2);

    agent.add_vm("fuse-b", Some("another fleet"));
    let answer = fuse.create(&json!({"task_id": "b"})).await;
    assert_eq!(answer.status, 500, "{}", answer.text);
    assert!(
        answer.message().contains("already exists"),
        "{}",
        answer.text
    );
    assert_eq!(agent.owner("fuse-b").as_deref(), Some("another fleet"));
    assert_eq!(fuse.get("/v1/environments/fuse-b").await.status, 404);
    fuse.stop().await;
}

#[tokio::test]
async fn a_conflict_about_something_else_keeps_its_reason() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let reason = "GPU GPU-1 is in use by vm other";
    agent.fail(Step::Create, 1, 409, reason);
    let answer = fuse.create(&json!({"task_id": "a"})).await;
    assert!(answer.message().contains(reason), "{}", answer.text);
    assert_eq!(fuse.get("/v1/environments/fuse-a").await.status, 404);
    fuse.stop().await;
}

#[tokio::test]
async fn a_caller_that_goes_away_changes_nothing() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let mut gate = agent.hold(Step::Create);
    let request = fuse
        .request(Method::POST, "/v1/environments")
        .json(&json!({"task_id": "a"}));
    tokio::select! {
        _ = request.send() => panic!("the create is held"),
        () = gate.reached() => {}
    }
    gate.open();
    fuse.until("/v1/environments/fuse-a", |answer| {
        answer.json["state"] == "running"
    })
    .await;

    let mut gate = agent.hold(Step::Delete);
    let request = fuse.request(Method::DELETE, "/v1/environments/fuse-a");
    tokio::select! {
        _ = request.send() => panic!("the delete is held"),
        () = gate.reached() => {}
    }
    gate.open();
    fuse.until("/v1/environments/fuse-a", |answer| answer.status == 404)
        .await;
    assert!(agent.vms().is_empty());
    fuse.stop().await;
}

#[tokio::test]
async fn a_destroy_stops_a_create_under_way() {
    for step in [Step::Create, Step::Upload, Step::StartAgent] {
        let (fuse, agent) = with_agent(Options::default()).await;
        let mut gate = agent.hold(step);
        let body = full_request();
        let create = fuse.create(&body);
        let destroy = async {
            gate.reached().await;
            fuse.delete("/v1/environments/fuse-a").await
        };
        let (created, destroyed) = tokio::join!(create, destroy);
        assert_eq!(destroyed.status, 204, "{step:?}");
        created.is_error(
            409,
            "conflict",
            "vm fuse-a was destroyed while it was being created",
        );
        assert_eq!(fuse.get("/v1/environments/fuse-a").await.status, 404);
        assert_eq!(allocated(&fuse).await.to_string(), NOTHING, "{step:?}");
        gate.open();
        fuse.stop().await;
    }
}

#[tokio::test]
async fn two_destroys_at_once_both_succeed() {
    let (fuse, agent) = with_agent(Options::default()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let mut gate = agent.hold(Step::Delete);
    let first = fuse.delete("/v1/environments/fuse-a");
    let second = async {
        gate.reached().await;
        let second = fuse.delete("/v1/environments/fuse-a");
        let open = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            gate.open();
        };
        tokio::join!(second, open).0
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(
        (first.status, second.status),
        (204, 204),
        "{} {}",
        first.text,
        second.text
    );
    assert_eq!(agent.count(Step::Delete, "fuse-a"), 1);
    fuse.stop().await;
}

#[tokio::test]
async fn creates_run_side_by_side_and_never_oversell() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let bodies: Vec<Value> = (0..16)
        .map(|i| json!({"task_id": format!("t{i}")}))
        .collect();
    let answers = futures_util::future::join_all(bodies.iter().map(|b| fuse.create(b))).await;
    let made = answers.iter().filter(|answer| answer.status == 201).count();
    let refused: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 503)
        .collect();
    assert_eq!((made, refused.len()), (10, 6));
    for answer in refused {
        answer.is_error(
            503,
            "unavailable",
            "no host has sufficient capacity: need 0CPU/0MB/0GB, no eligible host fits",
        );
    }
    assert_eq!(agent.vms().len(), 10);
    fuse.stop().await;
}

#[tokio::test]
async fn exec_runs_in_the_guest() {
    let (fuse, agent) = with_agent(Options::default()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    agent.on_exec(|argv| ExecResponse {
        exit_code: 7,
        stdout: argv.join("|").into_bytes(),
        stderr: vec![0xff, b'x'],
        ..ExecResponse::default()
    });
    let path = "/v1/environments/fuse-a?action=exec";
    let answer = fuse
        .post(path, &json!({"cmd": ["echo", "a b"]}))
        .await
        .is(200);
    assert_eq!(
        answer,
        json!({"exit_code": 7, "stdout": "echo|a b", "stderr": "\u{fffd}x"})
    );
    let answer = fuse.post(path, &json!({"shell": "ls"})).await.is(200);
    assert_eq!(answer["stdout"], "sh|-lc|ls");

    agent.fail(Step::Exec, 1, 500, "guest is gone");
    let answer = fuse.post(path, &json!({"cmd": ["true"]})).await;
    assert_eq!((answer.status, answer.code()), (500, "internal"));
    assert!(
        answer.message().contains("guest is gone"),
        "{}",
        answer.text
    );

    let mut gate = agent.hold(Step::Delete);
    let refused = async {
        gate.reached().await;
        let answer = fuse.post(path, &json!({"cmd": ["true"]})).await;
        gate.open();
        answer
    };
    let (gone, refused) = tokio::join!(fuse.delete("/v1/environments/fuse-a"), refused);
    assert_eq!(gone.status, 204);
    refused.is_error(409, "conflict", "vm not running: vm fuse-a is destroying");
    fuse.stop().await;
}
