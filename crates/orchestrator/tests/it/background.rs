//! Snapshots that are answered before they are taken.

use fuse_testkit::fake_agent::{FakeAgent, Step};
use reqwest::Method;
use serde_json::{Value, json};

use crate::recovery::{crash_in_the_middle, options};
use crate::support::{Answer, Options, Orchestrator, with_agent};

const SNAPSHOTS: &str = "/v1/environments/fuse-a/snapshots";

async fn running() -> (Orchestrator, FakeAgent) {
    let (fuse, agent) = with_agent(Options::default()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    (fuse, agent)
}

async fn begin(fuse: &Orchestrator, body: &Value, key: Option<&str>) -> Answer {
    let mut request = fuse
        .request(Method::POST, SNAPSHOTS)
        .header("Prefer", "respond-async")
        .json(body);
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    Orchestrator::send(request).await
}

fn path(begun: &Value) -> String {
    format!("/v1/snapshots/{}", begun["id"].as_str().unwrap())
}

async fn until(fuse: &Orchestrator, begun: &Value, state: &str) -> Value {
    let answer = fuse
        .until(&path(begun), |answer| answer.json["state"] == state)
        .await;
    answer.json
}

#[tokio::test]
async fn a_snapshot_is_there_before_it_is_taken() {
    let (fuse, agent) = running().await;
    let mut gate = agent.hold(Step::Snapshot);
    let body = json!({"comment": "c", "live": true});
    let answer = begin(&fuse, &body, Some("k")).await;
    assert_eq!(answer.header("preference-applied"), "respond-async");
    let begun = answer.is(202);
    assert_eq!(
        (&begun["state"], &begun["comment"], &begun["vm_id"]),
        (&json!("creating"), &json!("c"), &json!("fuse-a"))
    );
    gate.reached().await;
    // One operation at a time, as with any other snapshot.
    let busy = begin(&fuse, &json!({}), None).await;
    assert_eq!((busy.status, busy.code()), (409, "conflict"));
    let again = begin(&fuse, &body, Some("k")).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.is(202), begun);
    gate.open();
    let taken = until(&fuse, &begun, "ready").await;
    assert_eq!(
        (&taken["kind"], &taken["size_bytes"]),
        (&json!("live"), &json!(1 << 20))
    );
    let other = begin(&fuse, &json!({}), Some("k")).await;
    assert_eq!((other.status, other.code()), (409, "conflict"));
    let next = begin(&fuse, &json!({}), None).await.is(202);
    assert_eq!(next["parent_snapshot_id"], begun["id"]);
    until(&fuse, &next, "ready").await;
    let log = fuse.get("/v1/audit?type=snapshot.created").await.is(200);
    assert_eq!(log["audit_events"].as_array().unwrap().len(), 2);
    fuse.stop().await;
}

#[tokio::test]
async fn one_that_is_not_taken_says_why() {
    let (fuse, agent) = running().await;
    agent.fail(Step::Snapshot, 1, 500, "no room");
    let begun = begin(&fuse, &json!({}), None).await.is(202);
    let failed = until(&fuse, &begun, "error").await;
    assert!(
        failed["last_error"].as_str().unwrap().contains("no room"),
        "{failed}"
    );
    // An agent that chooses the id itself: nothing of it stays.
    agent.chooses_snapshot_ids();
    let begun = begin(&fuse, &json!({}), None).await.is(202);
    let failed = until(&fuse, &begun, "error").await;
    assert!(
        failed["last_error"]
            .as_str()
            .unwrap()
            .contains("update the agent"),
        "{failed}"
    );
    assert!(agent.snapshots().is_empty());
    fuse.delete(&path(&begun)).await.is(204);
    fuse.post_raw(SNAPSHOTS, "").await.is(201);
    fuse.stop().await;

    let stub = Orchestrator::start().await;
    let none = begin(&stub, &json!({}), None).await;
    none.is_error(404, "not_found", "vm fuse-a not found");
    stub.create(&json!({"task_id": "a"})).await.is(201);
    let none = begin(&stub, &json!({}), None).await;
    none.is_error(501, "unimplemented", "snapshot not supported by provider");
    stub.stop().await;
}

/// A snapshot that the host has finished is taken over, one that it has not is given up.
#[tokio::test]
async fn what_a_crash_leaves_is_settled() {
    for (step, state) in [(Step::Snapshot, "error"), (Step::SnapshotTaken, "ready")] {
        let dir = tempfile::TempDir::new().unwrap();
        let agent = FakeAgent::start().await.unwrap();
        // Should the agent go on without its caller.
        agent.fail(
            Step::Snapshot,
            usize::from(state == "error"),
            500,
            "left alone",
        );
        crash_in_the_middle(&dir, &agent, step, |fuse| async move {
            fuse.create(&json!({"task_id": "a"})).await.is(201);
            begin(&fuse, &json!({"comment": "c"}), None).await.is(202);
            std::future::pending::<()>().await;
        })
        .await;
        let fuse = Orchestrator::with(options(&dir)).await;
        let settled = fuse
            .until("/v1/snapshots", |answer| {
                answer.json["snapshots"][0]["state"] == state
            })
            .await;
        let all = settled.json["snapshots"].as_array().unwrap().clone();
        assert_eq!((all.len(), &all[0]["comment"]), (1, &json!("c")));
        fuse.stop().await;
    }
}
