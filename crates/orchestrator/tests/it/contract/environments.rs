//! Environments that are placed, used and ended: each refusal, its code and its exact text, over HTTP.

use fuse_testkit::fake_agent::{Step, TOKEN};
use reqwest::Method;
use serde_json::{Value, json};

use super::requests::request;
use crate::support::{Options, Orchestrator, with_agent};

/// Texts of the scheduler, and what goes along with them.
#[tokio::test]
async fn placements_are_refused_with_the_reason() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let refused = async |spec: Value| fuse.create(&request(&json!({ "spec": spec }))).await;
    for (spec, message, gate) in [
        (
            json!({"cpus": 17}),
            "no host has sufficient capacity: need 17CPU/0MB/0GB, no eligible host fits",
            "capacity",
        ),
        (
            json!({"region": "eu"}),
            "no host has sufficient capacity: need 0CPU/0MB/0GB, no eligible host fits",
            "region",
        ),
        (
            json!({"arch": "arm64"}),
            "no host has sufficient capacity: need 0CPU/0MB/0GB, no eligible host fits",
            "arch",
        ),
        (
            json!({"labels": {"disk": "nvme", "a": "b"}}),
            "no host matches the requested placement labels: a=b,disk=nvme matched none of 1 schedulable hosts",
            "labels",
        ),
        (
            json!({"gpus": 1}),
            "no host has sufficient capacity: need 1 gpu, and none of 1 schedulable hosts serves gpus",
            "backend",
        ),
        (
            json!({"gpus": 2, "gpu_profile": "1g.10gb", "gpu_kind": "a100"}),
            "no host has sufficient capacity: need 2 1g.10gb mig instances of kind \"a100\", and none of 1 schedulable hosts serves gpus",
            "backend",
        ),
    ] {
        let answer = refused(spec.clone()).await;
        answer.is_error(503, "unavailable", message);
        let details = json!({ format!("rejected_{gate}"): "1" });
        assert_eq!(answer.json["error"]["details"], details, "{spec}");
    }
    for (wish, why) in [
        (json!({"cpus": 17}), "does not fit 17CPU/0MB/0GB"),
        (
            json!({"region": "eu"}),
            "is in region \"\", the spec requires \"eu\"",
        ),
        (
            json!({"arch": "arm64"}),
            "is amd64, the spec requires arm64",
        ),
        (
            json!({"gpus": 1}),
            "has backend \"firecracker\", gpu environments require \"qemu\"",
        ),
        (
            json!({"labels": {"disk": "nvme", "a": "b"}}),
            "does not have labels a=b,disk=nvme",
        ),
    ] {
        let mut pinned = wish;
        pinned["host_id"] = "h".into();
        let message = format!("pinned host cannot take this environment: host \"h\" {why}");
        refused(pinned).await.is_error(503, "unavailable", &message);
    }
    refused(json!({"host_id": "x"})).await.is_error(
        404,
        "not_found",
        "spec.host_id: host \"x\" is not registered",
    );
    assert!(agent.vms().is_empty());
    // The task says why as well; the next attempt finds it free.
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(
        (&task["run_status"], &task["vm_id"]),
        (&json!("failed"), &json!("fuse-a"))
    );
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.stop().await;
}

/// The actions, in the order of their checks.
#[tokio::test]
async fn actions_are_refused_with_the_reason() {
    let (fuse, _agent) = with_agent(Options::default()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let act = async |id: &str, action: &str, body: Value| {
        let path = format!("/v1/environments/{id}?action={action}");
        fuse.post(&path, &body).await
    };
    for (action, body) in [
        ("drain", json!({})),
        ("rotate-token", json!({})),
        ("fork", json!({})),
        ("migrate", json!({"lazy": true})),
        ("exec", json!({"cmd": ["true"]})),
    ] {
        let answer = act("x", action, body).await;
        answer.is_error(404, "not_found", "vm x not found");
    }
    for (body, status, code, message) in [
        (
            json!({"target_host_id": "x"}),
            404,
            "not_found",
            "host x not found",
        ),
        (
            json!({"target_host_id": "h"}),
            400,
            "invalid_argument",
            "target_host_id is the host it is on",
        ),
        (
            json!({"lazy": true}),
            400,
            "invalid_argument",
            "lazy requires live",
        ),
        (
            json!({"live": true, "lazy": true}),
            400,
            "invalid_argument",
            "lazy needs an environment that was created with spec.huge_pages",
        ),
    ] {
        act("fuse-a", "migrate", body)
            .await
            .is_error(status, code, message);
    }
    let live = act("fuse-a", "migrate", json!({"live": true})).await;
    assert_eq!(
        (live.status, live.code()),
        (409, "conflict"),
        "{}",
        live.text
    );
    act("fuse-a", "drain", json!({})).await.is(200);
    let stopped = "vm not running: vm fuse-a is draining";
    for (action, body, message) in [
        ("drain", json!({}), stopped),
        (
            "rotate-token",
            json!({}),
            "token rotation requires running: vm fuse-a is draining",
        ),
        (
            "fork",
            json!({}),
            "fork requires running: vm fuse-a is draining",
        ),
        ("migrate", json!({}), stopped),
        ("exec", json!({"cmd": ["true"]}), stopped),
    ] {
        act("fuse-a", action, body)
            .await
            .is_error(409, "conflict", message);
    }
    fuse.stop().await;
}

/// GPU environments are refused for good, before anybody asks what their host can.
#[tokio::test]
async fn gpu_environments_are_neither_forked_nor_kept() {
    let (fuse, agent) = with_agent(Options::default()).await;
    agent.has(fuse_wire_host::Capacity {
        cpus: 8,
        ram_mb: 8192,
        storage_gb: 100,
        arch: "amd64".to_owned(),
        gpus: 1,
        ..fuse_wire_host::Capacity::default()
    });
    let host = json!({"id": "gpu", "url": agent.url(), "token": TOKEN, "backend": "qemu",
        "capacity": {"vm_count": 2}});
    fuse.post("/v1/hosts", &host).await.is(201);
    fuse.create(&json!({"task_id": "a", "spec": {"gpus": 1}}))
        .await
        .is(201);
    let refusal = "operation not supported for gpu environments: vm fuse-a has gpus";
    for path in ["?action=fork", "?action=migrate", "/snapshots"] {
        let path = format!("/v1/environments/fuse-a{path}");
        fuse.post(&path, &json!({}))
            .await
            .is_error(409, "conflict", refusal);
    }
    assert!(agent.snapshots().is_empty());
    fuse.stop().await;
}

/// What a record shows from its first moment to its last, and what it leaves out.
#[tokio::test]
async fn records_leave_out_what_is_empty() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let mut gate = agent.hold(Step::Create);
    let create = fuse
        .request(Method::POST, "/v1/environments")
        .header("Prefer", "respond-async")
        .json(&json!({"task_id": "a"}));
    let keys =
        |record: &Value| -> Vec<String> { record.as_object().unwrap().keys().cloned().collect() };
    let first = Orchestrator::send(create).await.is(202);
    let always = [
        "id",
        "state",
        "task_id",
        "host_id",
        "url",
        "spec",
        "created_at",
        "updated_at",
        "egress",
    ];
    assert_eq!(keys(&first), always);
    assert_eq!((&first["url"], &first["spec"]), (&json!(""), &json!({})));
    gate.reached().await;
    gate.open();
    fuse.until("/v1/environments/fuse-a", |answer| {
        answer.json["state"] == "running"
    })
    .await;
    let mut gate = agent.hold(Step::Delete);
    let seen = async {
        gate.reached().await;
        let last = fuse.get("/v1/environments/fuse-a").await.is(200);
        gate.open();
        last
    };
    let (gone, last) = tokio::join!(fuse.delete("/v1/environments/fuse-a"), seen);
    assert_eq!(gone.status, 204);
    assert_eq!(keys(&last), always);
    assert_eq!(
        (&last["state"], &last["task_id"]),
        (&json!("destroying"), &json!(""))
    );
    fuse.stop().await;
}
