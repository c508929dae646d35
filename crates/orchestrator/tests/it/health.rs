//! Verdicts of probes, from a fake guest to the environment.

use serde_json::{Value, json};

use crate::support::{Options, with_agent};

const FILE: &str = "/fuse/health.json";

#[tokio::test]
async fn a_verdict_shows_and_never_becomes_a_state() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let body = json!({"task_id": "a", "healthcheck": {"http": {"port": 80}}});
    let made = fuse.create(&body).await.is(201);
    assert_eq!(made.get("health"), None);
    let path = "/v1/environments/fuse-a";
    let verdict = |state: &str, failures: u32, message: &str| json!({"state": state, "since": "2026-01-15T10:00:00Z", "failures": failures, "message": message});
    let write = |content: &str| agent.write("fuse-a", FILE, content.as_bytes());
    write(&verdict("starting", 0, "").to_string());
    let shown = fuse
        .until(path, |answer| answer.json["health"].is_object())
        .await;
    assert_eq!(
        shown.json["health"],
        json!({"state": "starting", "since": "2026-01-15T10:00:00Z"})
    );
    // What is no verdict is not taken for one.
    write("{\"state\":\"dancing\"}");
    write(&verdict("failing", 3, "refused").to_string());
    let failing = |answer: &crate::support::Answer| answer.json["health"]["state"] == "failing";
    let shown = fuse.until(path, failing).await.is(200);
    assert_eq!(shown["health"]["failures"], 3);
    assert_eq!(shown["health"]["message"], "refused");
    assert_eq!(shown["state"], "running");
    fuse.control.reconcile_now();
    fuse.until("/metrics", |answer| {
        ["checked", "failing"].iter().all(|what| {
            let sample = format!("orchestrator_reconcile_health_{what}_vms 1\n");
            answer.text.contains(&sample)
        })
    })
    .await;
    let log = fuse.get("/v1/audit?type=vm.health_changed").await.is(200);
    let to = |entry: &Value| entry["payload"]["to"].clone();
    let changes: Vec<_> = log["audit_events"]
        .as_array()
        .unwrap()
        .iter()
        .map(to)
        .collect();
    assert_eq!(changes, ["failing", "starting"]);
    // The last verdict stays while there is no other one.
    write("");
    fuse.post_raw("/v1/environments/fuse-a?action=drain", "")
        .await
        .is(200);
    let shown = fuse.get(path).await.is(200);
    assert_eq!(shown["health"]["state"], "failing");

    let plain = fuse.create(&json!({"task_id": "b"})).await.is(201);
    assert_eq!(plain.get("health"), None);
    fuse.stop().await;
}
