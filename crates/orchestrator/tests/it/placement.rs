//! Where environments go: GPUs, drained hosts, and what is told to those who ask.

use fuse_testkit::fake_agent::{FakeAgent, TOKEN};
use fuse_wire_host::{Capacity, GpuDevice, MigInstance};
use serde_json::{Value, json};

use crate::support::{Options, Orchestrator, with_agent};

async fn gpu_host() -> (Orchestrator, FakeAgent, Value) {
    let (fuse, agent) = (
        Orchestrator::start().await,
        FakeAgent::start().await.unwrap(),
    );
    agent.has(Capacity {
        cpus: 64,
        ram_mb: 262_144,
        storage_gb: 2000,
        arch: "amd64".to_owned(),
        gpus: 2,
        gpu_kind: Some("a100".to_owned()),
        gpu_devices: (0..2)
            .map(|n| GpuDevice {
                uuid: format!("GPU-{n}"),
                model: "NVIDIA A100".to_owned(),
                memory_mb: 81_920,
                mig_capable: true,
                ..GpuDevice::default()
            })
            .collect(),
        mig_instances: (0..2)
            .map(|n| MigInstance {
                uuid: format!("MIG-{n}"),
                profile: "1g.10gb".to_owned(),
                kind: "a100".to_owned(),
                parent_gpu_uuid: "GPU-1".to_owned(),
            })
            .collect(),
        ..Capacity::default()
    });
    let body = json!({
        "id": "gpu-1", "url": agent.url(), "token": TOKEN, "backend": "qemu",
        "capacity": {"vm_count": 8, "mig_profiles": {"1G.10GB": 4}},
    });
    let host = fuse.post("/v1/hosts", &body).await.is(201);
    (fuse, agent, host)
}

#[tokio::test]
async fn gpu_units_are_bound_and_named_to_the_agent() {
    let (fuse, agent, host) = gpu_host().await;
    assert_eq!(
        host["warnings"],
        json!(["declared mig_profiles[1g.10gb] (4) exceeds probed MIG instances (2)"])
    );
    let capacity = &host["capacity"];
    assert_eq!(capacity["gpu_devices"][0]["memory_mb"], 81_920);
    assert_eq!(capacity["mig_instances"][1]["uuid"], "MIG-1");
    assert_eq!(capacity["mig_profiles"], json!({"1g.10gb": 4}));

    let create =
        async |task: &str, spec: Value| fuse.create(&json!({"task_id": task, "spec": spec})).await;
    create("a", json!({"gpus": 2, "gpu_kind": "A100"}))
        .await
        .is(201);
    let sent = agent.request("fuse-a").unwrap();
    assert_eq!(
        (sent.gpus, sent.gpu_uuids),
        (Some(2), vec!["GPU-0".to_owned(), "GPU-1".to_owned()])
    );
    assert!(sent.mig_instance_uuids.is_empty());
    let refused = create("b", json!({"gpus": 1})).await;
    assert_eq!(
        refused.message(),
        "no host has sufficient capacity: need 0CPU/0MB/0GB + 1 gpu, no eligible host fits"
    );
    create("c", json!({"gpus": 1, "gpu_profile": "1g.10gb"}))
        .await
        .is(201);
    let sent = agent.request("fuse-c").unwrap();
    assert_eq!(sent.mig_instance_uuids, ["MIG-0"]);
    assert_eq!(
        (sent.gpu_profile.as_deref(), sent.gpu_uuids.len()),
        (Some("1g.10gb"), 0)
    );

    let taken = fuse.get("/v1/hosts/gpu-1").await.is(200)["allocated"].clone();
    assert_eq!(
        taken,
        json!({"cpus": 0, "ram_mb": 0, "storage_gb": 0, "vm_count": 2, "gpus": 2,
            "gpu_kind": "a100", "mig_profiles": {"1g.10gb": 1}, "mig_instance_uuids": ["MIG-0"]})
    );
    fuse.delete("/v1/environments/fuse-a").await;
    create("d", json!({"gpus": 1, "huge_pages": true}))
        .await
        .is(201);
    let sent = agent.request("fuse-d").unwrap();
    assert_eq!(sent.gpu_uuids, ["GPU-0"]);
    assert_eq!(sent.huge_pages, Some(true));
    fuse.stop().await;
}

#[tokio::test]
async fn a_probe_takes_over_what_was_not_declared() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let body = json!({
        "id": "h", "url": agent.url(), "token": TOKEN,
        "capacity": {"cpus": 8, "vm_count": 10},
    });
    fuse.post("/v1/hosts", &body).await.is(201);
    let smaller = Capacity {
        cpus: 4,
        ram_mb: 1024,
        storage_gb: 50,
        arch: "amd64".to_owned(),
        ..Capacity::default()
    };
    agent.has(smaller);
    let probed = fuse
        .post("/v1/hosts/h?action=probe", &json!({}))
        .await
        .is(200);
    assert_eq!(
        probed["capacity"],
        json!({"cpus": 8, "ram_mb": 1024, "storage_gb": 50, "vm_count": 10, "arch": "amd64"})
    );
    assert_eq!(
        probed["warnings"],
        json!(["declared cpus (8) exceeds probed host capacity (4)"])
    );
    let log = fuse
        .get("/v1/audit?entity_type=host&type=host.overcommitted")
        .await
        .is(200);
    assert_eq!(log["audit_events"].as_array().unwrap().len(), 1);

    agent.fail(fuse_testkit::fake_agent::Step::Capacity, 1, 500, "broken");
    let failed = fuse.post("/v1/hosts/h?action=probe", &json!({})).await;
    assert_eq!((failed.status, failed.code()), (502, "internal"));
    assert!(
        failed
            .message()
            .starts_with("could not probe host capacity: "),
        "{}",
        failed.text
    );
    let host = fuse.get("/v1/hosts/h").await.is(200);
    assert_eq!(
        (&host["agent"]["reachable"], &host["capacity"]),
        (&json!(false), &probed["capacity"])
    );
    fuse.post("/v1/hosts/x?action=probe", &json!({}))
        .await
        .is_error(404, "not_found", "host x not found");
    fuse.stop().await;
}

#[tokio::test]
async fn a_draining_host_takes_nothing_and_keeps_what_it_has() {
    let (fuse, agent) = with_agent(Options::default()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let drain = |evict: &'static str| fuse.post(evict, &Value::Null);
    let refused = drain("/v1/hosts/h?action=drain&evict=all").await;
    refused.is_error(
        400,
        "invalid_argument",
        "evict must be \"none\", \"migrate\" or \"drain\"",
    );
    drain("/v1/hosts/x?action=drain&evict=migrate")
        .await
        .is_error(404, "not_found", "host x not found");
    assert_eq!(
        drain("/v1/hosts/h?action=drain&evict=none").await.status,
        204
    );
    assert_eq!(fuse.get("/v1/hosts/h").await.is(200)["state"], "draining");
    let refused = fuse
        .create(&json!({"task_id": "b", "spec": {"host_id": "h"}}))
        .await;
    refused.is_error(
        503,
        "unavailable",
        "pinned host cannot take this environment: host \"h\" is draining, not active",
    );
    assert_eq!(agent.vms(), ["fuse-a"]);
    let log = fuse
        .get("/v1/audit?entity_type=host&type=host.draining")
        .await
        .is(200);
    assert_eq!(log["audit_events"].as_array().unwrap().len(), 1);
    assert_eq!(drain("/v1/hosts/h?action=uncordon").await.status, 204);
    fuse.create(&json!({"task_id": "b"})).await.is(201);
    fuse.stop().await;
}

/// `evict=drain` asks every workload to stop; nothing is destroyed for it.
#[tokio::test]
async fn a_host_is_emptied_as_its_operator_says() {
    let (fuse, agent) = with_agent(Options::default()).await;
    for task in ["a", "b"] {
        fuse.create(&json!({ "task_id": task })).await.is(201);
    }
    let other = FakeAgent::start().await.unwrap();
    fuse.register("other", &other).await;
    let kept = json!({"task_id": "kept", "spec": {"host_id": "other"}});
    fuse.create(&kept).await.is(201);
    let drain = "/v1/hosts/h?action=drain&evict=drain";
    fuse.post_raw(drain, "").await.is(204);
    assert_eq!(fuse.get("/v1/hosts/h").await.is(200)["evict"], "drain");
    let state = |task: &str, state: &'static str| {
        let path = format!("/v1/environments/fuse-{task}");
        let fuse = &fuse;
        async move {
            fuse.until(&path, |answer| answer.json["state"] == state)
                .await
        }
    };
    state("a", "draining").await;
    state("b", "draining").await;
    state("kept", "running").await;
    assert_eq!(agent.vms(), ["fuse-a", "fuse-b"]);
    fuse.post_raw("/v1/hosts/h?action=uncordon", "")
        .await
        .is(204);
    let host = fuse.get("/v1/hosts/h").await.is(200);
    assert_eq!(
        (&host["state"], host.get("evict")),
        (&json!("active"), None)
    );
    fuse.stop().await;
}

#[tokio::test]
async fn placement_is_explained_and_nothing_is_made() {
    let (fuse, agent) = with_agent(Options::default()).await;
    fuse.register("other", &agent).await;
    fuse.post("/v1/hosts/other?action=cordon", &json!({})).await;
    let explain =
        |spec: Value| fuse.post_raw("/v1/placement/explain", json!({ "spec": spec }).to_string());
    let answer = explain(json!({"cpus": 2})).await.is(200);
    assert_eq!(
        answer,
        json!({"policy": "spread", "host_id": "h", "rejected": {"state": 1}, "hosts": [
            {"host_id": "h", "state": "active", "eligible": true, "rank": 1, "score": 225_536,
             "free_cpus": 16, "free_ram_mb": 65_536, "free_storage_gb": 500, "free_vms": 10},
            {"host_id": "other", "state": "cordoned", "eligible": false, "score": 225_536,
             "free_cpus": 16, "free_ram_mb": 65_536, "free_storage_gb": 500, "free_vms": 10,
             "gate": "state", "reason": "is cordoned, not active"},
        ]})
    );
    let answer = explain(json!({"cpus": 17})).await.is(200);
    assert_eq!(
        answer["error"],
        "no host has sufficient capacity: need 17CPU/0MB/0GB, no eligible host fits"
    );
    assert_eq!(answer["hosts"][0]["reason"], "does not fit 17CPU/0MB/0GB");
    assert!(answer.get("host_id").is_none());
    let unknown = explain(json!({"host_id": "x"})).await;
    assert_eq!((unknown.status, unknown.code()), (404, "not_found"));
    let bad = explain(json!({"cpus": -1})).await;
    assert_eq!((bad.status, bad.code()), (400, "invalid_argument"));
    assert!(agent.vms().is_empty());
    let all = fuse.get("/v1/environments").await.is(200);
    assert_eq!(all["environments"], json!([]));
    fuse.stop().await;

    let empty = Orchestrator::start().await;
    let answer = empty
        .post("/v1/placement/explain", &json!({}))
        .await
        .is(200);
    assert_eq!(answer["default_backend"], true);
    empty.stop().await;
}

/// Sizes that nobody asked for cost nothing, unless they are to be accounted for.
#[tokio::test]
async fn default_sizes_are_accounted_for_on_demand() {
    for (account_default_size, taken) in [(false, (0, 0)), (true, (2, 1024))] {
        let mut options = Options::default();
        options.settings.account_default_size = account_default_size;
        let (fuse, _agent) = with_agent(options).await;
        let made = fuse.create(&json!({"task_id": "a"})).await.is(201);
        assert_eq!(
            made["spec"],
            json!({}),
            "the spec stays as it was asked for"
        );
        fuse.post("/v1/environments/fuse-a?action=fork", &json!({}))
            .await
            .is(201);
        let host = fuse.get("/v1/hosts/h").await.is(200);
        let allocated = &host["allocated"];
        assert_eq!(
            (&allocated["cpus"], &allocated["ram_mb"]),
            (&json!(taken.0), &json!(taken.1))
        );
        fuse.delete("/v1/environments/fuse-a").await;
        let host = fuse.get("/v1/hosts/h").await.is(200);
        assert_eq!(host["allocated"]["cpus"], taken.0 / 2);
        fuse.stop().await;
    }
    let mut options = Options::default();
    options.settings.account_default_size = true;
    let fuse = Orchestrator::with(options).await;
    let agent = FakeAgent::start().await.unwrap();
    let body = json!({"id": "small", "url": agent.url(), "token": TOKEN,
        "capacity": {"cpus": 1, "ram_mb": 256, "storage_gb": 10, "vm_count": 2}});
    fuse.post("/v1/hosts", &body).await.is(201);
    fuse.create(&json!({"task_id": "a"})).await.is_error(
        503,
        "unavailable",
        "no host has sufficient capacity: need 1CPU/512MB/0GB, no eligible host fits",
    );
    fuse.stop().await;
}
