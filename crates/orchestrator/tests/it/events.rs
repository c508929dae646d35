//! Event streams: snapshot, transitions, terminal event, replay.

use serde_json::json;

use crate::support::{Answer, Options, Orchestrator, with_agent};
use fuse_model::{EnvironmentId, GuestReport, StepReport};
use fuse_testkit::fake_agent::Step;
use fuse_wire_host::ExecResponse;

#[tokio::test]
async fn a_stream_starts_with_the_state_and_ends_with_the_end() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let mut events = fuse.events("fuse-a", None).await;
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache"),
        ("connection", "keep-alive"),
        ("x-accel-buffering", "no"),
    ] {
        assert_eq!(events.response.headers()[name], value);
    }
    let first = events.next().await.unwrap();
    assert_eq!(first["state"], "running");
    assert_eq!(first["event"], "state");
    assert_eq!(first["vm_id"], "fuse-a");
    assert_eq!(first["url"], "fc://fuse-a");
    fuse.delete("/v1/environments/fuse-a").await;
    assert_eq!(events.states().await, ["destroying", "destroyed"]);
    fuse.events("fuse-a", None)
        .await
        .response
        .error_for_status_ref()
        .unwrap_err();
    fuse.stop().await;
}

#[tokio::test]
async fn every_transition_is_one_record() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let mut gate = agent.hold(Step::Create);
    fuse.accepted(&json!({"task_id": "a"})).await;
    gate.reached().await;
    let events = fuse.events("fuse-a", None).await;
    gate.open();
    fuse.until("/v1/environments/fuse-a", |answer| {
        answer.json["state"] == "running"
    })
    .await;
    fuse.delete("/v1/environments/fuse-a").await;
    assert_eq!(
        events.states().await,
        ["provisioning", "running", "destroying", "destroyed"]
    );
    fuse.stop().await;
}

#[tokio::test]
async fn steps_of_a_startup_script_are_records_of_the_stream() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let lines = "{\"index\":1,\"total\":2,\"duration_ms\":1500}\nno step\n\
        {\"index\":2,\"total\":2,\"duration_ms\":20,\"exit_code\":7}\n{\"index\":3";
    agent.on_exec(move |command| match command.first().map(String::as_str) {
        Some("tail") => {
            let from: usize = command[2].trim_start_matches('+').parse().unwrap();
            ExecResponse {
                stdout: lines.as_bytes()[from - 1..].to_vec(),
                ..ExecResponse::default()
            }
        }
        _ => {
            assert!(command[2].contains("/fuse/steps.ndjson"), "{command:?}");
            assert!(command[2].contains("__fuse_step 0; test\n"), "{command:?}");
            ExecResponse {
                exit_code: 90,
                ..ExecResponse::default()
            }
        }
    });
    let mut gate = agent.hold(Step::Create);
    let script = "set -eu\nmake\ntest\ntrap - EXIT\n";
    fuse.accepted(&json!({"task_id": "a", "startup_script": script,
            "startup_steps": {"first": 1, "total": 2, "offsets": [8, 13, 18]}}))
        .await;
    gate.reached().await;
    let mut events = fuse.events("fuse-a", None).await;
    gate.open();
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(event);
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert_eq!(seen[1]["event"], "step");
    assert_eq!(seen[1]["index"], 1);
    assert_eq!(seen[1]["duration_ms"], 1500);
    assert!(seen[1].get("exit_code").is_none(), "{seen:?}");
    assert_eq!(seen[2]["exit_code"], 7);
    assert_eq!(seen[2]["state"], "");
    assert_eq!(seen[3]["state"], "failed");
    let bad = fuse
        .create(&json!({"task_id": "b", "startup_script": script,
            "startup_steps": {"first": 1, "total": 2, "offsets": [9, 13, 18]}}))
        .await
        .is(400);
    assert!(bad.to_string().contains("startup_steps: offsets"), "{bad}");
    fuse.stop().await;
}

#[tokio::test]
async fn a_known_event_id_replays_what_is_newer() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.create(&json!({"task_id": "b"})).await.is(201);
    let mut live = fuse.events("fuse-a", None).await;
    live.next().await.unwrap();
    fuse.delete("/v1/environments/fuse-a").await;
    let destroying = live.next().await.unwrap();
    assert_eq!(destroying["state"], "destroying");
    let id = destroying["id"].as_str().unwrap();

    // Also after the environment is gone.
    assert_eq!(
        fuse.events("fuse-a", Some(id)).await.states().await,
        ["destroyed"]
    );
    let by_query = format!("/v1/environments/fuse-a/events?last_event_id={id}");
    assert!(
        fuse.get(&by_query)
            .await
            .text
            .contains(r#""state":"destroyed""#)
    );
    // Of another environment, or of nobody: a snapshot.
    for unknown in [id, "0123456789abcdef0123456789abcdef", "x"] {
        let mut stream = fuse.events("fuse-b", Some(unknown)).await;
        assert_eq!(stream.next().await.unwrap()["state"], "running");
    }
    fuse.stop().await;
}

/// A script can have more steps than are read at a time; the end comes behind all of them.
#[tokio::test]
async fn a_replay_is_whole_however_long_it_is() {
    const STEPS: u32 = 600;
    let (fuse, agent) = with_agent(Options::default()).await;
    let mut gate = agent.hold(Step::Create);
    fuse.accepted(&json!({"task_id": "a"})).await;
    gate.reached().await;
    let step = |index| {
        GuestReport::Step(StepReport {
            index,
            total: STEPS,
            duration_ms: 1,
            exit_code: 0,
        })
    };
    let (id, steps) = (EnvironmentId::new("fuse-a"), (1..=STEPS).map(step));
    let store = fuse.control.store();
    store.event_add_reports(&id, steps.collect()).await.unwrap();
    let first = store.event_list_of(&id, 0, 1).await.unwrap().remove(0).id;
    gate.open();
    let running = |answer: &Answer| answer.json["state"] == "running";
    fuse.until("/v1/environments/fuse-a", running).await;
    let mut seen = fuse.events("fuse-a", Some(&first.to_string())).await;
    for index in 1..=STEPS {
        assert_eq!(seen.next().await.unwrap()["index"], index);
    }
    assert_eq!(seen.next().await.unwrap()["state"], "running");
    fuse.delete("/v1/environments/fuse-a").await.is(204);
    assert_eq!(seen.states().await, ["destroying", "destroyed"]);
    // Also for who comes when it is over.
    let replay = fuse.events("fuse-a", Some(&first.to_string())).await;
    let states = replay.states().await;
    assert_eq!(states.len(), 603);
    assert_eq!(states[600..], ["running", "destroying", "destroyed"]);
    fuse.stop().await;
}

#[tokio::test]
async fn a_failed_create_is_told_on_the_stream() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let mut gate = agent.hold(Step::Create);
    agent.fail(Step::Create, 1, 500, "no disk");
    fuse.accepted(&json!({"task_id": "a"})).await;
    gate.reached().await;
    let mut events = fuse.events("fuse-a", None).await;
    assert_eq!(events.next().await.unwrap()["state"], "provisioning");
    gate.open();
    let last = events.next().await.unwrap();
    assert_eq!(last["state"], "failed");
    assert!(
        last["error"].as_str().unwrap().contains("no disk"),
        "{last}"
    );
    // The record is gone before the event is published.
    assert_eq!(fuse.get("/v1/environments/fuse-a").await.status, 404);
    assert!(events.next().await.is_none());
    fuse.stop().await;
}

#[tokio::test]
async fn shutdown_ends_streams() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let mut events = fuse.events("fuse-a", None).await;
    events.next().await.unwrap();
    let (rest, ()) = tokio::join!(events.next(), fuse.stop());
    assert!(rest.is_none());
}

#[tokio::test]
async fn many_subscribers_see_the_same() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut stream = fuse.events("fuse-a", None).await;
        assert_eq!(stream.next().await.unwrap()["state"], "running");
        streams.push(stream);
    }
    fuse.delete("/v1/environments/fuse-a").await;
    for stream in streams {
        assert_eq!(stream.states().await, ["destroying", "destroyed"]);
    }
    fuse.stop().await;
}
