//! Registering and managing hosts.

use fuse_testkit::fake_agent::{FakeAgent, Step, TOKEN};
use serde_json::{Value, json};

use crate::support::{Orchestrator, with_agent};

fn body(agent: &FakeAgent, extra: &Value) -> Value {
    let mut body = json!({"id": "h", "url": agent.url(), "token": TOKEN});
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_host_is_probed() {
    let (fuse, agent) = (
        Orchestrator::start().await,
        FakeAgent::start().await.unwrap(),
    );
    let request = body(
        &agent,
        &json!({"region": "eu", "labels": {"disk": "nvme"}, "capacity": {"vm_count": 3}}),
    );
    let host = fuse.post("/v1/hosts", &request).await.is(201);
    assert_eq!(host["id"], "h");
    assert_eq!(host["url"], agent.url());
    assert_eq!(host["backend"], "firecracker");
    assert_eq!(host["state"], "active");
    assert_eq!(host["region"], "eu");
    assert_eq!(
        host["capacity"],
        json!({"cpus": 16, "ram_mb": 65536, "storage_gb": 500, "vm_count": 3, "arch": "amd64"})
    );
    assert_eq!(host["agent"]["reachable"], true);
    assert!(host.get("warnings").is_none());
    assert!(!host.to_string().contains(TOKEN));
    let mut read = fuse.get("/v1/hosts/h").await.is(200);
    assert_eq!(read["capacity"], host["capacity"]);
    read["warnings"].take();
    assert_eq!(
        fuse.get("/v1/hosts").await.is(200)["hosts"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    fuse.get("/v1/hosts/x")
        .await
        .is_error(404, "not_found", "host x not found");
    fuse.stop().await;
}

#[tokio::test]
async fn a_wrong_token_is_refused_in_the_seeds_words() {
    let (fuse, agent) = (
        Orchestrator::start().await,
        FakeAgent::start().await.unwrap(),
    );
    let full = json!({"cpus": 1, "ram_mb": 1, "storage_gb": 1, "vm_count": 1});
    for (backend, variable) in [
        ("firecracker", "FC_AGENT_TOKEN"),
        ("qemu", "QEMU_AGENT_TOKEN"),
    ] {
        let request = body(
            &agent,
            &json!({"token": "wrong", "backend": backend, "capacity": full}),
        );
        fuse.post("/v1/hosts", &request).await.is_error(
            502,
            "unauthorized",
            &format!(
                "host agent at {} rejected the token. this must be its {variable}, not the orchestrator token",
                agent.url()
            ),
        );
    }
    assert_eq!(fuse.get("/v1/hosts").await.is(200), json!({"hosts": []}));
    fuse.stop().await;
}

/// Before the store knows a host that nothing could be asked of; a host that becomes one is not placed on.
#[tokio::test]
async fn an_agent_of_another_generation_is_refused() {
    let (fuse, agent) = (
        Orchestrator::start().await,
        FakeAgent::start().await.unwrap(),
    );
    let full = json!({"cpus": 1, "ram_mb": 1, "storage_gb": 1, "vm_count": 1});
    let request = body(&agent, &json!({"capacity": full}));
    for (speaks, mended_by) in [
        (
            "2-3",
            "update the orchestrator: ops/install-orchestrator.sh",
        ),
        (
            "0-0",
            "update that host: host-agent/firecracker/fc-update.sh",
        ),
    ] {
        agent.speaks(speaks);
        fuse.post("/v1/hosts", &request).await.is_error(
            409,
            "conflict",
            &format!(
                "capacity: host agent at {} speaks generations {speaks} of the host contract and \
                 this orchestrator 1-1: {mended_by}",
                agent.url()
            ),
        );
    }
    assert_eq!(fuse.get("/v1/hosts").await.is(200), json!({"hosts": []}));
    // It speaks more than we do, and what we do.
    agent.speaks("1-3");
    fuse.post("/v1/hosts", &request).await.is(201);
    fuse.stop().await;
}

#[tokio::test]
async fn an_unreachable_agent_needs_a_full_declaration() {
    let (fuse, mut agent) = (
        Orchestrator::start().await,
        FakeAgent::start().await.unwrap(),
    );
    agent.stop().await;
    let partial = body(&agent, &json!({"capacity": {"cpus": 4, "vm_count": 1}}));
    let answer = fuse.post("/v1/hosts", &partial).await;
    assert_eq!((answer.status, answer.code()), (502, "internal"));
    assert!(
        answer.message().starts_with(
            "could not probe host capacity and cpus/ram_mb/storage_gb were not all declared explicitly: "
        ),
        "{}",
        answer.text
    );
    let full = json!({"cpus": 4, "ram_mb": 1024, "storage_gb": 10, "vm_count": 1});
    let host = fuse
        .post("/v1/hosts", &body(&agent, &json!({ "capacity": full })))
        .await
        .is(201);
    let warning = host["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with(&format!("could not verify host agent at {} (", agent.url()))
            && warning.ends_with("); registering with declared capacity"),
        "{warning}"
    );
    assert_eq!(host["capacity"], full);
    assert_eq!(host["agent"]["reachable"], false);
    fuse.stop().await;
}

#[tokio::test]
async fn declarations_above_the_probe_warn() {
    let (fuse, agent) = (
        Orchestrator::start().await,
        FakeAgent::start().await.unwrap(),
    );
    let request = body(&agent, &json!({"capacity": {"cpus": 32, "vm_count": 1}}));
    let host = fuse.post("/v1/hosts", &request).await.is(201);
    assert_eq!(
        host["warnings"],
        json!(["declared cpus (32) exceeds probed host capacity (16)"])
    );
    assert_eq!(host["capacity"]["cpus"], 32);
    assert!(
        fuse.get("/v1/hosts/h")
            .await
            .is(200)
            .get("warnings")
            .is_none()
    );
    fuse.stop().await;
}

#[tokio::test]
async fn bad_requests_are_never_dialled() {
    let (fuse, agent) = (
        Orchestrator::start().await,
        FakeAgent::start().await.unwrap(),
    );
    for (extra, start) in [
        (json!({"id": ""}), "id and url are required"),
        (json!({"url": "ftp://x"}), "url: "),
        (json!({"url": "http://u:p@x"}), "url: "),
        (json!({"url": "http://x?y"}), "url: "),
        (
            json!({"backend": "xen"}),
            "backend must be \"firecracker\" or \"qemu\"",
        ),
        (
            json!({"capacity": {"gpus": 1}}),
            "gpus > 0 requires backend \"qemu\"",
        ),
        (
            json!({"labels": {"a b": "x"}}),
            "labels: invalid label key \"a b\"",
        ),
        (
            json!({"capacity": {"mig_profiles": {"1g.10gb": 1}}}),
            "mig_profiles requires backend \"qemu\"",
        ),
    ] {
        let answer = fuse.post("/v1/hosts", &body(&agent, &extra)).await;
        assert_eq!(
            (answer.status, answer.code()),
            (400, "invalid_argument"),
            "{extra}"
        );
        assert!(answer.message().starts_with(start), "{}", answer.text);
    }
    assert!(agent.calls().is_empty(), "{:?}", agent.calls());
    let no_slots = fuse.post("/v1/hosts", &body(&agent, &json!({}))).await;
    assert_eq!(
        (no_slots.status, no_slots.code()),
        (400, "invalid_argument")
    );
    assert!(
        no_slots
            .message()
            .starts_with("cpus, ram_mb, storage_gb, and vm_count must be positive"),
        "{}",
        no_slots.text
    );
    let arch = body(
        &agent,
        &json!({"capacity": {"vm_count": 1, "arch": "arm64"}}),
    );
    fuse.post("/v1/hosts", &arch).await.is_error(
        400,
        "invalid_argument",
        "declared arch \"arm64\" contradicts the host agent's probed arch \"amd64\"",
    );
    fuse.stop().await;
}

#[tokio::test]
async fn registering_again_keeps_state_and_what_is_allocated() {
    let (fuse, agent) = with_agent(crate::support::Options::default()).await;
    let first = fuse.get("/v1/hosts/h").await.is(200);
    fuse.create(&json!({"task_id": "a", "spec": {"cpus": 3}}))
        .await
        .is(201);
    assert_eq!(
        fuse.post("/v1/hosts/h?action=cordon", &json!({}))
            .await
            .status,
        204
    );
    let again = fuse.register("h", &agent).await;
    assert_eq!(again["state"], "cordoned");
    assert_eq!(again["created_at"], first["created_at"]);
    assert_eq!(again["allocated"]["cpus"], 3);
    let other = body(
        &agent,
        &json!({"backend": "qemu", "capacity": {"vm_count": 1}}),
    );
    let answer = fuse.post("/v1/hosts", &other).await;
    assert_eq!(
        (answer.status, answer.code()),
        (409, "conflict"),
        "{}",
        answer.text
    );
    fuse.stop().await;
}

#[tokio::test]
async fn cordon_uncordon_and_remove() {
    let (fuse, agent) = with_agent(crate::support::Options::default()).await;
    assert_eq!(
        fuse.post("/v1/hosts/h?action=cordon", &json!({}))
            .await
            .status,
        204
    );
    let refused = fuse
        .create(&json!({"task_id": "a", "spec": {"host_id": "h"}}))
        .await;
    refused.is_error(
        503,
        "unavailable",
        "pinned host cannot take this environment: host \"h\" is cordoned, not active",
    );
    let refused = fuse.create(&json!({"task_id": "a"})).await;
    assert_eq!(
        refused.json["error"]["details"],
        json!({"rejected_state": "1"})
    );
    assert_eq!(
        fuse.post("/v1/hosts/h?action=uncordon", &json!({}))
            .await
            .status,
        204
    );
    fuse.create(&json!({"task_id": "a"})).await.is(201);

    let in_use = fuse.delete("/v1/hosts/h").await;
    in_use.is_error(
        409,
        "conflict",
        "host still has vms assigned: host h still has vm fuse-a assigned",
    );
    assert_eq!(in_use.json["error"]["details"]["vm_count"], "1");
    fuse.delete("/v1/environments/fuse-a").await;
    assert_eq!(fuse.delete("/v1/hosts/h").await.status, 204);
    let missing = "host h not found";
    fuse.delete("/v1/hosts/h")
        .await
        .is_error(404, "not_found", missing);
    fuse.post("/v1/hosts/h?action=cordon", &json!({}))
        .await
        .is_error(404, "not_found", missing);
    fuse.post("/v1/hosts/h?action=dance", &json!({}))
        .await
        .is_error(
            400,
            "invalid_argument",
            "missing or unknown action query parameter",
        );
    assert_eq!(agent.count(Step::Create, "fuse-a"), 1);
    fuse.stop().await;
}
