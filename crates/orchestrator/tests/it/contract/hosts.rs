//! Hosts: each rule of a registration, its code and its exact text, over HTTP.

use fuse_testkit::fake_agent::{FakeAgent, Step, TOKEN};
use fuse_wire_host::{Capacity, GpuDevice};
use serde_json::{Value, json};

use crate::support::{Options, Orchestrator, with_agent};

/// What a registration says instead, and why it is refused.
const REGISTRATIONS: &[(&str, &str)] = &[
    (r#"{"id": ""}"#, "id and url are required"),
    (r#"{"id": " "}"#, "id and url are required"),
    (r#"{"url": ""}"#, "id and url are required"),
    (r#"{"url": "  "}"#, "id and url are required"),
    (
        r#"{"id": "a\nb"}"#,
        "id must not contain control characters",
    ),
    (
        r#"{"url": "ftp://x"}"#,
        "url: agent url scheme must be http or https, not \"ftp\"",
    ),
    (
        r#"{"url": "http://u:hunter2@x"}"#,
        "url: agent url must not contain user info; pass the token separately",
    ),
    (r#"{"url": "http://"}"#, "url: agent url has no host"),
    (
        r#"{"url": "http://x:0"}"#,
        "url: agent url port must be 1 to 65535",
    ),
    (
        r#"{"url": "http://x:65536"}"#,
        "url: agent url port must be 1 to 65535",
    ),
    (
        r#"{"url": "http://x?y"}"#,
        "url: agent url must not contain a query",
    ),
    // The URL comes before the backend, the backend before the rest.
    (
        r#"{"url": "http://x#y", "backend": "xen"}"#,
        "url: agent url must not contain a fragment",
    ),
    (
        r#"{"backend": "xen", "capacity": {"gpus": -1}}"#,
        "backend must be \"firecracker\" or \"qemu\"",
    ),
    (
        r#"{"capacity": {"gpus": 1, "arch": "mips"}}"#,
        "gpus > 0 requires backend \"qemu\"",
    ),
    (
        r#"{"backend": "qemu", "capacity": {"gpus": -1, "arch": "mips"}}"#,
        "gpus must not be negative",
    ),
    (
        r#"{"capacity": {"arch": "mips"}, "labels": {"": ""}}"#,
        "arch \"mips\" must be amd64 or arm64",
    ),
    (
        r#"{"capacity": {"mig_profiles": {"1g.10gb": 1}}, "labels": {"": ""}}"#,
        "mig_profiles requires backend \"qemu\"",
    ),
    (
        r#"{"labels": {"a b": "x"}}"#,
        "labels: invalid label key \"a b\"",
    ),
    // In the order of their keys.
    (
        r#"{"labels": {"b b": "x", "a": "x!"}}"#,
        "labels[a]: invalid label value \"x!\"",
    ),
    (
        r#"{"backend": "qemu", "capacity": {"mig_profiles": {"foo": 4}}}"#,
        "mig_profiles: invalid MIG profile \"foo\" (expected mig-parted form like \"1g.10gb\")",
    ),
    (
        r#"{"backend": "qemu", "capacity": {"mig_profiles": {"8g.10gb": 4, "9": 0}}}"#,
        "mig_profiles: invalid MIG profile \"8g.10gb\" (expected mig-parted form like \"1g.10gb\")",
    ),
    (
        r#"{"backend": "qemu", "capacity": {"mig_profiles": {"1g.10gb": 0}}}"#,
        "mig_profiles[1g.10gb]: count must be positive",
    ),
];

async fn fleet() -> (Orchestrator, FakeAgent) {
    let agent = FakeAgent::start().await.unwrap();
    (Orchestrator::start().await, agent)
}

/// A registration of the agent as `h`, with what a row says instead.
fn request(agent: &FakeAgent, extra: &Value) -> Value {
    let mut request = json!({"id": "h", "url": agent.url(), "token": TOKEN});
    let fields = request.as_object_mut().unwrap();
    fields.extend(extra.as_object().unwrap().clone());
    request
}

#[tokio::test]
async fn registrations_are_checked_before_the_agent_is_dialled() {
    let (fuse, agent) = fleet().await;
    for (extra, message) in REGISTRATIONS {
        let extra: Value = serde_json::from_str(extra).unwrap();
        let answer = fuse.post("/v1/hosts", &request(&agent, &extra)).await;
        assert_eq!(
            (answer.status, answer.code(), answer.message()),
            (400, "invalid_argument", *message),
            "{extra}"
        );
    }
    let answer = fuse
        .post("/v1/hosts", &request(&agent, &json!({"url": "10.0.0.5"})))
        .await;
    let start = "url: agent url \"10.0.0.5\" is not a valid URL (example: http://10.0.0.5:8090)";
    assert!(answer.message().starts_with(start), "{}", answer.text);
    assert!(agent.calls().is_empty(), "{:?}", agent.calls());
    assert_eq!(fuse.get("/v1/hosts").await.is(200), json!({"hosts": []}));
    fuse.stop().await;
}

/// What the operator declares over what the agent says.
#[tokio::test]
async fn declarations_and_probes_are_merged() {
    let (fuse, agent) = fleet().await;
    agent.has(Capacity {
        cpus: 16,
        ram_mb: 65_536,
        storage_gb: 500,
        arch: "amd64".to_owned(),
        gpus: 2,
        gpu_kind: Some("a100".to_owned()),
        gpu_devices: vec![GpuDevice {
            uuid: "GPU-0".to_owned(),
            ..GpuDevice::default()
        }],
        ..Capacity::default()
    });
    let made_up = json!({"uuid": "GPU-9", "profile": "1g.10gb"});
    let declared = json!({
        "backend": "qemu", "region": "eu", "labels": {"disk": "nvme"}, "future": 1,
        "capacity": {
            "cpus": 32, "ram_mb": 65_537, "storage_gb": 501, "vm_count": 3, "arch": " X86_64",
            "gpus": 3, "gpu_kind": "h100", "mig_profiles": {"1G.10GB": 1},
            "gpu_devices": [made_up], "mig_instances": [made_up], "mig_instance_uuids": ["MIG-9"],
        },
    });
    let host = fuse
        .post("/v1/hosts", &request(&agent, &declared))
        .await
        .is(201);
    assert_eq!(
        host["warnings"],
        json!([
            "declared cpus (32) exceeds probed host capacity (16)",
            "declared ram_mb (65537) exceeds probed host capacity (65536)",
            "declared storage_gb (501) exceeds probed host capacity (500)",
            "declared gpus (3) exceeds probed host capacity (2)",
            "declared gpu_kind (\"h100\") differs from probed host gpu_kind (\"a100\")",
            "mig_profiles are declared but the host agent reports no MIG instances; \
             they are counted, not bound to instances",
        ])
    );
    let mut capacity = host["capacity"].clone();
    let devices = capacity.as_object_mut().unwrap().remove("gpu_devices");
    assert_eq!(devices.unwrap()[0]["uuid"], "GPU-0");
    assert_eq!(
        capacity,
        json!({"cpus": 32, "ram_mb": 65_537, "storage_gb": 501, "vm_count": 3, "arch": "amd64",
            "gpus": 3, "gpu_kind": "h100", "mig_profiles": {"1g.10gb": 1}})
    );
    assert_eq!(
        host["allocated"],
        json!({"cpus": 0, "ram_mb": 0, "storage_gb": 0, "vm_count": 0})
    );
    for time in ["last_seen", "created_at", "updated_at"] {
        assert!(host[time].is_string(), "{time}");
    }
    let keys: Vec<&String> = host.as_object().unwrap().keys().collect();
    assert!(!keys.contains(&&"token".to_owned()), "{keys:?}");
    // Nothing declared: all but the slots comes from the agent, and there is nothing to warn of.
    let bare = request(
        &agent,
        &json!({"id": "bare", "backend": "qemu", "capacity": {"vm_count": 1}}),
    );
    let host = fuse.post("/v1/hosts", &bare).await.is(201);
    assert_eq!(
        (&host["capacity"]["cpus"], &host["capacity"]["gpus"]),
        (&json!(16), &json!(2))
    );
    for absent in ["warnings", "region", "labels", "evict"] {
        assert!(host.get(absent).is_none(), "{absent}");
    }
    fuse.stop().await;
}

#[tokio::test]
async fn what_the_probe_cannot_answer_must_be_declared() {
    let (fuse, agent) = fleet().await;
    let full = json!({"cpus": 4, "ram_mb": 1024, "storage_gb": 10, "vm_count": 1});
    for missing in ["cpus", "ram_mb", "storage_gb"] {
        let mut partial = full.clone();
        partial[missing] = 0.into();
        agent.fail(Step::Capacity, 1, 500, "broken");
        let body = request(&agent, &json!({ "capacity": partial }));
        let answer = fuse.post("/v1/hosts", &body).await;
        assert_eq!((answer.status, answer.code()), (502, "internal"));
        let start = "could not probe host capacity and cpus/ram_mb/storage_gb were not all declared explicitly: ";
        assert!(
            answer.message().starts_with(start),
            "{missing}: {}",
            answer.text
        );
        assert!(answer.message().contains("broken"), "{}", answer.text);
    }
    // A GPU host that could not be asked offers no GPU, which is said.
    agent.fail(Step::Capacity, 1000, 500, "broken");
    let body = request(&agent, &json!({"backend": "qemu", "capacity": full}));
    let host = fuse.post("/v1/hosts", &body).await.is(201);
    let warnings = host["warnings"].as_array().unwrap();
    let unverified = warnings[0].as_str().unwrap();
    let start = format!("could not verify host agent at {} (", agent.url());
    assert!(unverified.starts_with(&start), "{unverified}");
    assert!(unverified.ends_with("); registering with declared capacity"));
    assert_eq!(
        warnings[1],
        "no gpus were declared and none could be probed; the host offers no GPU"
    );
    let host = fuse
        .post("/v1/hosts", &request(&agent, &json!({"capacity": full})))
        .await
        .is(201);
    assert_eq!(host["warnings"].as_array().unwrap().len(), 1);
    agent.heal();
    // Slots are policy: no probe gives them.
    for (capacity, got) in [
        (json!({}), "16, 65536, 500, 0"),
        (json!({"vm_count": -1, "cpus": 2}), "2, 65536, 500, -1"),
    ] {
        let body = request(&agent, &json!({"id": "none", "capacity": capacity}));
        fuse.post("/v1/hosts", &body).await.is_error(
            400,
            "invalid_argument",
            &format!(
                "cpus, ram_mb, storage_gb, and vm_count must be positive (got {got}); \
                 vm_count is never probed, declare it"
            ),
        );
    }
    let contradicts = json!({"id": "none", "capacity": {"vm_count": 1, "arch": "aarch64"}});
    fuse.post("/v1/hosts", &request(&agent, &contradicts))
        .await
        .is_error(
            400,
            "invalid_argument",
            "declared arch \"arm64\" contradicts the host agent's probed arch \"amd64\"",
        );
    fuse.get("/v1/hosts/none")
        .await
        .is_error(404, "not_found", "host none not found");
    fuse.stop().await;
}

#[tokio::test]
async fn a_backend_does_not_change_under_its_environments() {
    let (fuse, agent) = with_agent(Options::default()).await;
    for task in ["a", "b"] {
        fuse.create(&json!({ "task_id": task })).await.is(201);
    }
    let qemu = request(
        &agent,
        &json!({"backend": "qemu", "capacity": {"vm_count": 1}}),
    );
    fuse.post("/v1/hosts", &qemu).await.is_error(
        409,
        "conflict",
        "host h still has 2 vms of another backend: destroy them before changing its backend",
    );
    // The lowest id is named, whatever was made first.
    let in_use = fuse.delete("/v1/hosts/h").await;
    in_use.is_error(
        409,
        "conflict",
        "host still has vms assigned: host h still has vm fuse-a assigned",
    );
    assert_eq!(in_use.json["error"]["details"], json!({"vm_count": "2"}));
    for task in ["a", "b"] {
        let path = format!("/v1/environments/fuse-{task}");
        fuse.delete(&path).await.is(204);
    }
    let host = fuse.post("/v1/hosts", &qemu).await.is(201);
    assert_eq!(
        (&host["backend"], &host["capacity"]["vm_count"]),
        (&json!("qemu"), &json!(1))
    );
    fuse.stop().await;
}

/// Every route of one host, for a host that is not there; and what is no action.
#[tokio::test]
async fn hosts_that_are_not_there() {
    let fuse = Orchestrator::start().await;
    let missing = "host x not found";
    fuse.get("/v1/hosts/x")
        .await
        .is_error(404, "not_found", missing);
    fuse.delete("/v1/hosts/x")
        .await
        .is_error(404, "not_found", missing);
    for action in [
        "cordon",
        "uncordon",
        "drain",
        "drain&evict=none",
        "drain&evict=",
        "probe",
    ] {
        let path = format!("/v1/hosts/x?action={action}");
        fuse.post_raw(&path, "")
            .await
            .is_error(404, "not_found", missing);
    }
    for path in [
        "/v1/hosts/x",
        "/v1/hosts/x?action=",
        "/v1/hosts/x?action=Cordon",
    ] {
        fuse.post_raw(path, "").await.is_error(
            400,
            "invalid_argument",
            "missing or unknown action query parameter",
        );
    }
    fuse.stop().await;
}
