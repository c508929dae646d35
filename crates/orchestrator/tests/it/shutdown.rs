//! A signal: nothing new is taken, what is under way ends well, and within the ceiling.

use std::time::Duration;

use fuse_testkit::fake_agent::{FakeAgent, Step, TOKEN};
use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::program::{Program, wait};

async fn with_agent(env: &[(&str, &str)]) -> (Program, FakeAgent) {
    let agent = FakeAgent::start().await.unwrap();
    let program = Program::start(env);
    let host = json!({"id": "h", "url": agent.url(), "token": TOKEN, "capacity": {"vm_count": 9}});
    let (status, _) = program.call(Method::POST, "/v1/hosts", Some(host)).await;
    assert_eq!(status, 201);
    (program, agent)
}

fn create(program: &Program, task: &str) -> reqwest::RequestBuilder {
    program
        .http
        .post(format!("{}/v1/environments", program.base))
        .bearer_auth("master")
        .json(&json!({ "task_id": task }))
}

#[tokio::test]
async fn requests_under_way_are_answered_and_streams_end() {
    let (mut program, agent) = with_agent(&[("ORCH_AUTH_TOKEN", "master")]).await;
    let mut gate = agent.hold(Step::Upload);
    let mut creating = JoinSet::new();
    creating.spawn(create(&program, "a").send());
    gate.reached().await;
    let stream = program
        .http
        .get(format!("{}/v1/environments/fuse-a/events", program.base))
        .bearer_auth("master")
        .send()
        .await
        .unwrap();
    program.signal("-TERM");
    // The stream ends while the create goes on.
    let told = stream.text().await.unwrap();
    assert!(
        told.contains(r#""state":"provisioning""#) && !told.contains("running"),
        "{told}"
    );
    // Nothing new is taken.
    let refused = async {
        let client = crate::support::http_client();
        while client
            .get(format!("{}/health", program.base))
            .send()
            .await
            .is_ok()
        {}
    };
    tokio::time::timeout(Duration::from_secs(20), refused)
        .await
        .unwrap();
    gate.open();
    let answer = creating.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(answer.status(), 201);
    let made: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(made["state"], "running");
    let (status, said) = program.ended();
    assert_eq!(status, Some(0));
    assert!(
        said.contains("stopped") && !said.contains("did not end"),
        "{said}"
    );
}

#[tokio::test]
async fn what_takes_too_long_is_left_to_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/fuse.db", dir.path().display());
    let env = [
        ("ORCH_AUTH_TOKEN", "master"),
        ("DATABASE_URL", url.as_str()),
        ("ORCH_SHUTDOWN_TIMEOUT_SECONDS", "1"),
        ("ORCH_RECONCILE_INTERVAL_SECONDS", "1"),
    ];
    let (mut program, agent) = with_agent(&env).await;
    let mut gate = agent.hold(Step::Upload);
    let mut creating = JoinSet::new();
    creating.spawn(create(&program, "a").send());
    gate.reached().await;
    program.signal("-INT");
    let (status, said) = program.ended();
    assert_eq!(status, Some(0));
    assert!(
        said.contains("did not end within the shutdown timeout"),
        "{said}"
    );
    assert!(
        creating.join_next().await.unwrap().unwrap().is_err(),
        "nobody is told that it succeeded"
    );
    gate.open();
    drop(program);

    let program = Program::start(&env);
    wait(&program, "/v1/environments/fuse-a", |answer| {
        answer.0 == 404
    })
    .await;
    assert!(agent.vms().is_empty());
}
