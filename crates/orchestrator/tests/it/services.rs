//! Services of a manifest: brought up after the script, reported, quoted when they fail, and again after a boot.

use std::sync::{Arc, Mutex};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fuse_testkit::fake_agent::{FakeAgent, Step};
use fuse_wire_host::ExecResponse;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Options, Orchestrator, with_agent};

/// What the guest agent writes while they come up, and what no guest agent writes.
const REPORTS: &str = "{\"service\":\"db\",\"status\":\"started\",\"duration_ms\":10,\"exit_code\":0}\n\
    {\"service\":\"../x\",\"status\":\"started\",\"duration_ms\":10,\"exit_code\":0}\n\
    {\"service\":\"db\",\"status\":\"healthy\",\"duration_ms\":20,\"exit_code\":0}\n";

fn request() -> Value {
    let manifest = r#"{"services":{"db":{"image":"i","env":{"PW":{"secret":"S"}}}}}"#;
    json!({
        "task_id": "a",
        "manifest_inline": BASE64_STANDARD.encode(manifest),
        "secrets": {"S": "hunter2hunter2"},
    })
}

/// A guest whose services end as told. What was run in it, readings of files left out.
fn guest(agent: &FakeAgent, exit_code: i32, stderr: &'static str) -> Arc<Mutex<Vec<String>>> {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&ran);
    agent.on_exec(move |argv| {
        if argv[0] == "tail" {
            let from: usize = argv[2].trim_start_matches('+').parse().unwrap();
            assert_eq!(argv[3], "/fuse/services.ndjson");
            return ExecResponse {
                stdout: REPORTS.as_bytes()[from - 1..].to_vec(),
                ..ExecResponse::default()
            };
        }
        notes.lock().unwrap().push(argv[2].clone());
        ExecResponse {
            exit_code,
            stdout: b"Creating fuse_db_1 ... done\n".to_vec(),
            stderr: stderr.as_bytes().to_vec(),
            ..ExecResponse::default()
        }
    });
    ran
}

async fn events_of_a_create(fuse: &Orchestrator, agent: &FakeAgent, last: &str) -> Vec<Value> {
    let mut gate = agent.hold(Step::Create);
    let accepted = fuse
        .request(Method::POST, "/v1/environments")
        .header("Prefer", "respond-async")
        .json(&request());
    assert_eq!(accepted.send().await.unwrap().status(), 202);
    gate.reached().await;
    let mut events = fuse.events("fuse-a", None).await;
    gate.open();
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        let is_last = event["state"] == last;
        seen.push(event);
        if is_last {
            break;
        }
    }
    seen
}

#[tokio::test]
async fn they_come_up_before_the_environment_runs() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let ran = guest(&agent, 0, "");
    let seen = events_of_a_create(&fuse, &agent, "running").await;
    let told: Vec<_> = seen
        .iter()
        .filter(|event| event["event"] == "service")
        .map(|event| (event["service"].clone(), event["status"].clone()))
        .collect();
    let db = |status: &str| (json!("db"), json!(status));
    assert_eq!(told, [db("started"), db("healthy")], "{seen:?}");
    let calls = ran.lock().unwrap().clone();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert!(calls[0].contains("services up") && !calls[0].contains("hunter2"));
    let last = agent
        .calls()
        .into_iter()
        .rfind(|call| call.ends_with("fuse-a"));
    assert_eq!(last.as_deref(), Some("start-agent fuse-a"));
    let log = fuse.get("/v1/environments/fuse-a/logs").await;
    assert!(log.text.contains("Creating fuse_db_1"), "{}", log.text);

    // A guest that has booted anew gets them again, and nobody waits for them.
    agent.reboot("fuse-a");
    fuse.until("/v1/environments/fuse-a", |_| {
        fuse.control.reconcile_now();
        ran.lock().unwrap().len() == 2
    })
    .await;
    let again = ran.lock().unwrap()[1].clone();
    assert!(
        again.contains("services up") && again.contains("/fuse/services.log"),
        "{again}"
    );
    fuse.stop().await;
}

#[tokio::test]
async fn one_that_does_not_start_fails_the_create_and_is_quoted() {
    let (fuse, agent) = with_agent(Options::default()).await;
    guest(
        &agent,
        1,
        "service db ended with exit status 3: no hunter2hunter2 here\n",
    );
    let answer = fuse.create(&request()).await;
    answer.is_error(
        400,
        "invalid_argument",
        "services did not come up: service db ended with exit status 3: no [REDACTED] here",
    );
    assert!(agent.vms().is_empty(), "{:?}", agent.vms());
    assert_eq!(fuse.get("/v1/environments/fuse-a").await.status, 404);
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(task["output"]["exit_code"], 1, "{task}");
    assert_eq!(task["failure"]["step"], "services", "{task}");
    fuse.stop().await;
}

/// The workload was asked to stop, and so were they.
#[tokio::test]
async fn they_come_up_again_after_a_move_that_failed() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let ran = guest(&agent, 0, "");
    fuse.create(&request()).await.is(201);
    let other = FakeAgent::start().await.unwrap();
    fuse.register("other", &other).await;
    other.fail(Step::Create, 1, 500, "the disk is broken");
    let path = "/v1/environments/fuse-a?action=migrate";
    let failed = fuse.post(path, &json!({})).await;
    assert!(
        failed.text.contains("the disk is broken"),
        "{}",
        failed.text
    );
    let calls = ran.lock().unwrap().clone();
    let [_create, drain, again] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert!(drain.contains("fused drain"), "{drain}");
    assert!(again.contains("services up") && again.contains("/fuse/services.log"));
    fuse.stop().await;
}
