//! The stream of the whole fleet, and streams with many readers or a slow one.

use fuse_control::Settings;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Options, Orchestrator, Sse};

async fn take(events: &mut Sse, count: usize) -> Vec<Value> {
    let mut taken = Vec::new();
    for _ in 0..count {
        taken.push(events.next().await.unwrap());
    }
    taken
}

fn told(events: &[Value]) -> Vec<(&str, &str)> {
    events
        .iter()
        .map(|event| {
            (
                event["vm_id"].as_str().unwrap(),
                event["state"].as_str().unwrap(),
            )
        })
        .collect()
}

#[tokio::test]
async fn the_fleet_is_told_in_order_and_again_from_any_event() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "before"})).await.is(201);
    let mut events = fuse.fleet_events(None).await;
    assert_eq!(
        events.response.headers()["content-type"],
        "text/event-stream"
    );
    for task in ["a", "b"] {
        fuse.create(&json!({"task_id": task})).await.is(201);
    }
    fuse.delete("/v1/environments/fuse-a").await;
    let all = take(&mut events, 6).await;
    assert_eq!(
        told(&all),
        [
            ("fuse-a", "provisioning"),
            ("fuse-a", "running"),
            ("fuse-b", "provisioning"),
            ("fuse-b", "running"),
            ("fuse-a", "destroying"),
            ("fuse-a", "destroyed"),
        ]
    );
    // The same cursor as of one environment's stream, from any event of any of them.
    for seen in 0..all.len() - 1 {
        let last = all[seen]["id"].as_str().unwrap();
        let mut again = fuse.fleet_events(Some(last)).await;
        let rest = take(&mut again, all.len() - 1 - seen).await;
        assert_eq!(rest, all[seen + 1..]);
    }
    // An id of nobody's behaves as none.
    let mut fresh = fuse
        .fleet_events(Some("0123456789abcdef0123456789abcdef"))
        .await;
    fuse.delete("/v1/environments/fuse-b").await;
    let next = take(&mut fresh, 2).await;
    assert_eq!(
        told(&next),
        [("fuse-b", "destroying"), ("fuse-b", "destroyed")]
    );
    let (end, ()) = tokio::join!(fresh.next(), fuse.stop());
    assert!(end.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_of_the_fleet_misses_nothing() {
    let fuse = Orchestrator::start().await;
    let mut events = fuse.fleet_events(None).await;
    // More than any queue between here and there holds.
    for n in 0..400 {
        let task = format!("t{n}");
        fuse.create(&json!({"task_id": task})).await.is(201);
        fuse.delete(&format!("/v1/environments/fuse-t{n}")).await;
    }
    let all = take(&mut events, 1600).await;
    let states = ["provisioning", "running", "destroying", "destroyed"];
    for (n, event) in all.iter().enumerate() {
        let vm_id = format!("fuse-t{}", n / 4);
        assert_eq!(
            (event["vm_id"].as_str(), event["state"].as_str()),
            (Some(&*vm_id), Some(states[n % 4]))
        );
    }
    fuse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_subscribers_see_the_end() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let mut readers = JoinSet::new();
    for _ in 0..500 {
        let mut stream = fuse.events("fuse-a", None).await;
        assert_eq!(stream.next().await.unwrap()["state"], "running");
        readers.spawn(stream.states());
    }
    assert_eq!(fuse.delete("/v1/environments/fuse-a").await.status, 204);
    for states in readers.join_all().await {
        assert_eq!(states, ["destroying", "destroyed"]);
    }
    fuse.stop().await;
}

/// What has had its time goes by itself.
#[tokio::test]
async fn old_audit_entries_are_forgotten_by_the_leader() {
    let options = Options {
        settings: Settings {
            audit_retention: std::time::Duration::from_millis(1),
            reconcile_interval: std::time::Duration::from_millis(100),
            ..Settings::default()
        },
        ..Options::default()
    };
    let fuse = Orchestrator::with(options).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.until("/v1/audit", |answer| {
        answer.status == 200 && answer.text.contains("[]")
    })
    .await;
    fuse.stop().await;
}
