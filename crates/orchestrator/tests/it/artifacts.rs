//! Snapshots that move to another host, and the collection of layers, against fake hosts.

use std::time::Duration;

use fuse_control::Settings;
use fuse_model::{EnvironmentId, HostId, Snapshot, SnapshotId, SnapshotKind, SnapshotState};
use fuse_store::SnapshotChange;
use fuse_testkit::fake_agent::{FakeAgent, Step, TOKEN};
use fuse_wire_host::Capacity;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::{Answer, Options, Orchestrator, with_agent};

const SNAPSHOTS: &str = "/v1/environments/fuse-a/snapshots";

/// Two hosts, `h` and `other`; an environment with a file in it and a layer of it on `h`.
struct Fleet {
    fuse: Orchestrator,
    agent: FakeAgent,
    other: FakeAgent,
    layer: Value,
}

impl Fleet {
    async fn start(settings: Settings) -> Self {
        let options = Options {
            settings,
            ..Options::default()
        };
        let (fuse, agent) = with_agent(options).await;
        // The first cycle comes by itself; a layer that was there already might be collected.
        fuse.until("/ready", |answer| answer.status == 200).await;
        fuse.create(&json!({"task_id": "a"})).await.is(201);
        agent.write("fuse-a", "/data", b"seed");
        let layer = json!({"mode": "build", "layer_key": "k"});
        let layer = fuse.post(SNAPSHOTS, &layer).await.is(201);
        let other = FakeAgent::start().await.unwrap();
        fuse.register("other", &other).await;
        Self {
            fuse,
            agent,
            other,
            layer,
        }
    }

    async fn cordon(&self, host: &str) {
        let path = format!("/v1/hosts/{host}?action=cordon");
        self.fuse.post_raw(&path, "").await.is(204);
    }

    /// Creates from the layer.
    async fn create(&self, task: &str) -> Answer {
        self.create_on(task, json!({})).await
    }

    async fn create_on(&self, task: &str, spec: Value) -> Answer {
        let body = json!({
            "task_id": task, "seed_snapshot_id": self.layer["id"], "spec": spec
        });
        self.fuse.create(&body).await
    }

    async fn snapshots(&self, query: &str) -> Vec<Value> {
        let list = self.fuse.get(&format!("/v1/snapshots?{query}")).await;
        list.is(200)["snapshots"].as_array().unwrap().clone()
    }

    async fn audit(&self, kind: &str) -> Vec<Value> {
        let list = self.fuse.get(&format!("/v1/audit?type={kind}")).await;
        list.is(200)["audit_events"].as_array().unwrap().clone()
    }
}

fn pulls(agent: &FakeAgent) -> usize {
    let calls = agent.calls();
    calls
        .iter()
        .filter(|call| call.starts_with("pull "))
        .count()
}

#[tokio::test]
async fn a_seed_is_brought_where_there_is_room_and_stays_there() {
    let fleet = Fleet::start(Settings::default()).await;
    // Whoever has it comes first, though the other host is empty.
    assert_eq!(fleet.create("near").await.is(201)["host_id"], "h");
    fleet.cordon("h").await;
    let made = fleet.create("far").await.is(201);
    assert_eq!(made["host_id"], "other");
    assert_eq!(fleet.other.file("fuse-far", "/data").unwrap(), b"seed");

    let copies = fleet.snapshots("layer_key=k&mode=build").await;
    let copy = copies.iter().find(|one| one["host_id"] == "other").unwrap();
    let id = copy["id"].as_str().unwrap();
    let digest = fleet.layer["digest"].as_str().unwrap();
    assert!(id.starts_with(&format!("art-{}-", &digest[..16])), "{id}");
    for (key, value) in [
        ("vm_id", json!("")),
        ("layer_key", json!("k")),
        ("arch", json!("amd64")),
        ("kind", json!("disk")),
        ("state", json!("ready")),
        ("digest", json!(digest)),
    ] {
        assert_eq!(copy[key], value, "{key}: {copy}");
    }
    assert_eq!(copy.get("parent_snapshot_id"), None);
    let request = fleet.other.request("fuse-far").unwrap();
    assert_eq!(request.seed_snapshot.as_deref(), Some(id));
    let pulled = fleet.audit("artifact.pulled").await;
    assert_eq!(pulled.len(), 1);
    assert_eq!(pulled[0]["payload"]["source_host_id"], "h");

    // The next one finds it there, whatever becomes of the host that it came from.
    assert_eq!(fleet.create("again").await.is(201)["host_id"], "other");
    assert_eq!(pulls(&fleet.other), 1);
    let gone = format!("/v1/snapshots/{}", fleet.layer["id"].as_str().unwrap());
    fleet.fuse.delete(&gone).await.is(204);
    let resolved = fleet
        .fuse
        .get("/v1/snapshots/resolve?layer_key=k&arch=amd64");
    assert_eq!(resolved.await.is(200)["snapshot"]["id"], id);
    fleet.fuse.stop().await;
}

/// The explanation of a create is its decision: the same first host, whoever else has more room.
#[tokio::test]
async fn an_explanation_sees_the_seed_as_the_create_does() {
    let fleet = Fleet::start(Settings::default()).await;
    let seed = fleet.layer["id"].as_str().unwrap().to_owned();
    let explain = async |spec: Value| {
        let body = json!({"seed_snapshot_id": seed, "spec": spec});
        let answer = fleet.fuse.post("/v1/placement/explain", &body).await;
        answer.is(200)
    };
    let mut qemu = FakeAgent::start().await.unwrap();
    let body = json!({"id": "gpus", "url": qemu.url(), "token": TOKEN, "backend": "qemu",
        "capacity": {"vm_count": 5}});
    fleet.fuse.post("/v1/hosts", &body).await.is(201);

    let near = explain(json!({"cpus": 1})).await;
    assert_eq!(near["host_id"], "h");
    let hosts = near["hosts"].as_array().unwrap();
    let shown = |key: &str| {
        hosts
            .iter()
            .map(|host| host[key].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(shown("host_id"), ["h", "other", "gpus"]);
    assert_eq!(
        shown("artifact_local"),
        [json!(true), json!(null), json!(null)]
    );
    assert_eq!(shown("rank"), [json!(1), json!(2), json!(null)]);
    assert_eq!(
        hosts[2]["reason"],
        "has backend \"qemu\", seed snapshots require \"firecracker\""
    );
    let made = fleet.create_on("near", json!({"cpus": 1})).await.is(201);
    assert_eq!(made["host_id"], near["host_id"]);

    fleet.cordon("h").await;
    let far = explain(json!({"cpus": 1})).await;
    assert_eq!(far["host_id"], "other");
    assert_eq!(far["hosts"][1]["artifact_local"], true);
    let too_large = explain(json!({"cpus": 1000})).await;
    let refused = fleet.create_on("huge", json!({"cpus": 1000})).await;
    assert_eq!(too_large["error"], refused.message());
    assert!(too_large.get("host_id").is_none());
    let unknown = json!({"seed_snapshot_id": "nope"});
    let unknown = fleet.fuse.post("/v1/placement/explain", &unknown).await;
    assert_eq!((unknown.status, unknown.code()), (404, "not_found"));
    qemu.stop().await;
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn a_seed_that_cannot_move_keeps_an_explanation_where_it_is() {
    let (fuse, agent) = with_agent(Options::default()).await;
    agent.hide_digests();
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let taken = fuse.post(SNAPSHOTS, &json!({})).await.is(201);
    let other = FakeAgent::start().await.unwrap();
    fuse.register("other", &other).await;
    let explain = async |spec: Value| {
        let body = json!({"seed_snapshot_id": taken["id"], "spec": spec});
        fuse.post("/v1/placement/explain", &body).await.is(200)
    };
    let free = explain(json!({})).await;
    assert_eq!(free["host_id"], "h");
    assert_eq!(free["rejected"], json!({"seed": 1}));
    assert_eq!(
        free["hosts"][1]["reason"],
        "does not have the seed snapshot, which cannot move"
    );
    let pinned = explain(json!({"host_id": "other"})).await;
    let body = json!({"task_id": "b", "seed_snapshot_id": taken["id"],
        "spec": {"host_id": "other"}});
    assert_eq!(pinned["error"], fuse.create(&body).await.message());
    assert!(pinned.get("host_id").is_none());
    assert_eq!(pinned["rejected"], json!({"pin": 1, "seed": 1}));
    fuse.stop().await;
}

#[tokio::test]
async fn hosts_without_snapshots_are_left_alone() {
    let often = Duration::from_millis(100);
    let fleet = Fleet::start(Settings {
        reconcile_interval: often,
        host_check_interval: often,
        ..Settings::default()
    })
    .await;
    let gpus = FakeAgent::start().await.unwrap();
    gpus.has(Capacity {
        cpus: 1024,
        ram_mb: 1 << 20,
        storage_gb: 9000,
        arch: "amd64".to_owned(),
        gpus: 1,
        ..Capacity::default()
    });
    let host = json!({
        "id": "gpu", "url": gpus.url(), "token": TOKEN, "backend": "qemu",
        "capacity": {"vm_count": 8},
    });
    fleet.fuse.post("/v1/hosts", &host).await.is(201);
    fleet.cordon("h").await;
    // The emptiest host by far, and the seed does not go there.
    assert_eq!(fleet.create("far").await.is(201)["host_id"], "other");
    let refused = fleet.create_on("pinned", json!({"host_id": "gpu"})).await;
    assert_eq!((refused.status, refused.code()), (503, "unavailable"));
    let said = "host \"gpu\" has backend \"qemu\", seed snapshots require \"firecracker\"";
    assert!(refused.message().ends_with(said), "{}", refused.message());
    let refused = fleet.create_on("with", json!({"gpus": 1})).await;
    let id = fleet.layer["id"].as_str().unwrap();
    let said =
        format!("snapshot invalid state: snapshot {id}: it cannot seed an environment with gpus");
    refused.is_error(409, "conflict", &said);

    // Neither does a cycle ask it for what it does not have.
    let cycles = |count| {
        move |agent: &FakeAgent| agent.calls().iter().filter(|call| *call == "list").count() > count
    };
    gpus.until(cycles(3)).await;
    let calls = gpus.calls();
    let expected = |call: &&String| *call != "capacity" && *call != "list";
    let others: Vec<_> = calls.iter().filter(expected).collect();
    assert!(others.is_empty(), "{others:?}");
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn creates_at_the_same_time_copy_once() {
    let fleet = Fleet::start(Settings::default()).await;
    fleet.cordon("h").await;
    let mut gate = fleet.agent.hold(Step::Artifact);
    let creates = futures_util::future::join_all(["b", "c", "d"].map(|task| fleet.create(task)));
    let (made, ()) = tokio::join!(creates, async {
        gate.reached().await;
        while pulls(&fleet.other) < 3 {
            tokio::task::yield_now().await;
        }
        gate.open();
    });
    for answer in made {
        assert_eq!(answer.is(201)["host_id"], "other");
    }
    let digest = fleet.layer["digest"].as_str().unwrap();
    assert_eq!(fleet.agent.count(Step::Artifact, digest), 1);
    assert_eq!(fleet.snapshots("layer_key=k").await.len(), 2);
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn a_copy_that_fails_fails_the_create_and_leaves_nothing() {
    let fleet = Fleet::start(Settings::default()).await;
    fleet.cordon("h").await;
    fleet
        .other
        .fail(Step::Pull, 1, 422, "the host lacks 7 MiB of disk space");
    let refused = fleet.create("b").await;
    assert_eq!((refused.status, refused.code()), (500, "internal"));
    let text = refused.message();
    assert!(text.starts_with("artifact transfer failed: "), "{text}");
    assert!(
        text.contains("host other cannot fetch it from host h"),
        "{text}"
    );
    assert!(text.contains("lacks 7 MiB"), "{text}");
    fleet
        .agent
        .fail(Step::Artifact, 1, 404, "artifact not found");
    let refused = fleet.create("b").await;
    assert!(
        refused.message().contains("artifact not found"),
        "{}",
        refused.text
    );
    assert_eq!(fleet.fuse.get("/v1/environments/fuse-b").await.status, 404);
    assert_eq!(fleet.snapshots("layer_key=k").await.len(), 1);
    assert!(fleet.other.snapshots().is_empty() && fleet.other.vms().is_empty());
    // Nothing is in the way of another try.
    fleet.create("b").await.is(201);
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn another_holder_serves_when_the_first_does_not() {
    let fleet = Fleet::start(Settings::default()).await;
    fleet
        .create_on("b", json!({"host_id": "other"}))
        .await
        .is(201);
    let third = FakeAgent::start().await.unwrap();
    fleet.fuse.register("third", &third).await;
    fleet
        .agent
        .fail(Step::Artifact, 1, 500, "the disk is broken");
    let made = fleet.create_on("c", json!({"host_id": "third"})).await;
    assert_eq!(made.is(201)["host_id"], "third");
    assert_eq!(third.file("fuse-c", "/data").unwrap(), b"seed");
    let digest = fleet.layer["digest"].as_str().unwrap();
    assert_eq!(fleet.other.count(Step::Artifact, digest), 1);
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn an_agent_that_is_started_anew_is_asked_again() {
    let fleet = Fleet::start(Settings::default()).await;
    fleet.cordon("h").await;
    let mut gate = fleet.other.hold(Step::Pulled);
    let (made, ()) = tokio::join!(fleet.create("b"), async {
        gate.reached().await;
        fleet.other.forget_pulls();
        gate.open();
    });
    assert_eq!(made.is(201)["host_id"], "other");
    assert_eq!(pulls(&fleet.other), 2);
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn the_bound_of_a_copy_is_kept() {
    let settings = Settings {
        artifact_pull_timeout: Duration::from_secs(1),
        ..Settings::default()
    };
    let fleet = Fleet::start(settings).await;
    fleet.cordon("h").await;
    let _held = fleet.agent.hold(Step::Artifact);
    let refused = fleet.create("b").await;
    assert!(
        refused
            .message()
            .ends_with("no answer for 1s (ORCH_ARTIFACT_PULL_TIMEOUT_SECONDS)"),
        "{}",
        refused.text
    );
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn what_cannot_move_says_so() {
    let fleet = Fleet::start(Settings::default()).await;
    // Of another architecture.
    let arm = FakeAgent::start().await.unwrap();
    arm.has(Capacity {
        cpus: 64,
        ram_mb: 1 << 20,
        storage_gb: 5000,
        arch: "arm64".to_owned(),
        ..Capacity::default()
    });
    fleet.fuse.register("arm", &arm).await;
    for host in ["h", "other"] {
        fleet.cordon(host).await;
    }
    let refused = fleet.create("b").await;
    assert_eq!(refused.status, 503);
    assert!(
        refused.message().contains("is on host h and can move: "),
        "{}",
        refused.text
    );
    let refused = fleet.create_on("b", json!({"arch": "arm64"})).await;
    assert!(
        refused
            .message()
            .ends_with("it is of amd64, the spec requires arm64"),
        "{}",
        refused.text
    );
    let refused = fleet.create_on("b", json!({"host_id": "arm"})).await;
    assert!(
        refused
            .message()
            .contains("is arm64, the spec requires amd64"),
        "{}",
        refused.text
    );

    // Nobody could tell whether the right bytes arrived.
    fleet.agent.hide_digests();
    let blind = fleet.fuse.post(SNAPSHOTS, &json!({})).await.is(201);
    let body = json!({"task_id": "b", "seed_snapshot_id": blind["id"]});
    let refused = fleet.fuse.create(&body).await;
    assert!(
        refused.message().contains("is on host h and cannot move: "),
        "{}",
        refused.text
    );
    let pinned = json!({
        "task_id": "b", "seed_snapshot_id": blind["id"], "spec": {"host_id": "other"}
    });
    let refused = fleet.fuse.create(&pinned).await;
    assert!(
        refused.message().ends_with("the request pins host other"),
        "{}",
        refused.text
    );
    fleet.fuse.stop().await;
}

/// A layer that was last used so many minutes ago, without bytes anywhere.
fn layer(id: &str, minutes: i64) -> Snapshot {
    let at = Timestamp::now() - jiff::SignedDuration::from_mins(minutes);
    Snapshot {
        id: SnapshotId::new(id),
        environment_id: Some(EnvironmentId::new("gone")),
        task_id: String::new(),
        host_id: Some(HostId::new("h")),
        tenant: "t".to_owned(),
        owner: String::new(),
        parent_id: String::new(),
        mode: Snapshot::BUILD.to_owned(),
        state: SnapshotState::Ready,
        kind: SnapshotKind::Disk,
        layer_key: "l".to_owned(),
        arch: "amd64".to_owned(),
        digest: "d".repeat(64),
        base_digest: String::new(),
        size_bytes: 1,
        retention_until: None,
        metadata: std::collections::BTreeMap::new(),
        exports: Vec::new(),
        last_error: String::new(),
        created_at: at,
        updated_at: at,
    }
}

/// What of these is left once the fleet has looked at all of them.
async fn collect(fleet: &Fleet, layers: Vec<Snapshot>, left: &[&str]) {
    for layer in layers {
        let inserted = fleet
            .fuse
            .control
            .store()
            .snapshot_insert(layer, Vec::new(), None);
        inserted.await.unwrap();
    }
    fleet.fuse.control.reconcile_now();
    fleet
        .fuse
        .until("/v1/snapshots?tenant_id=t", |answer| {
            let list = answer.json["snapshots"].as_array().unwrap();
            let ids: Vec<_> = list.iter().filter_map(|one| one["id"].as_str()).collect();
            ids == left
        })
        .await;
}

fn collecting(idle_minutes: u64, max: u64) -> Settings {
    Settings {
        // One cycle when a test wants it, and none before everything is there.
        reconcile_interval: Duration::from_secs(3600),
        artifact_idle_ttl: Duration::from_secs(idle_minutes * 60),
        artifact_max_per_tenant: max,
        ..Settings::default()
    }
}

#[tokio::test]
async fn idle_layers_go_and_what_somebody_needs_stays() {
    let fleet = Fleet::start(collecting(60, 0)).await;
    // An environment was started from the first layer of the fleet.
    fleet.create("b").await.is(201);
    let child = Snapshot {
        parent_id: "parent".to_owned(),
        ..layer("child", 50)
    };
    let named = Snapshot {
        layer_key: String::new(),
        ..layer("named", 500)
    };
    let layers = vec![
        layer("parent", 500),
        child,
        named,
        layer("idle", 70),
        layer("used", 5),
    ];
    collect(&fleet, layers, &["used", "child", "parent", "named"]).await;
    let deleted = fleet.audit("artifact.gc_deleted").await;
    assert_eq!(deleted.len(), 1, "{deleted:?}");
    assert_eq!(deleted[0]["payload"]["snapshot_id"], "idle");
    assert_eq!(deleted[0]["payload"]["reason"], "idle");
    assert_eq!(
        fleet.agent.snapshots(),
        [fleet.layer["id"].as_str().unwrap()]
    );
    // Without the environment nothing keeps it.
    fleet.fuse.delete("/v1/environments/fuse-b").await.is(204);
    let store = fleet.fuse.control.store();
    let id = SnapshotId::new(fleet.layer["id"].as_str().unwrap());
    let change = SnapshotChange {
        if_unused_since: Some(Timestamp::now()),
        ..SnapshotChange::new(&[SnapshotState::Ready], SnapshotState::Ready)
    };
    assert!(store.snapshot_change(&id, change).await.unwrap().is_some());
    fleet.fuse.stop().await;
}

/// The clock of its host says that the layer was made months ago.
#[tokio::test]
async fn a_layer_is_not_as_old_as_its_host_says() {
    let fleet = Fleet::start(collecting(60, 0)).await;
    let id = fleet.layer["id"].as_str().unwrap();
    let made: Timestamp = fleet.layer["created_at"].as_str().unwrap().parse().unwrap();
    let age = Timestamp::now().duration_since(made);
    assert!(age > jiff::SignedDuration::from_hours(24 * 30), "{made}");
    collect(&fleet, vec![layer("idle", 70)], &[]).await;
    assert_eq!(fleet.agent.snapshots(), [id]);
    assert_eq!(fleet.snapshots("state=ready").await.len(), 1);
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn of_too_many_layers_the_least_recently_used_go() {
    let fleet = Fleet::start(collecting(0, 2)).await;
    let layers = vec![
        layer("a", 40),
        layer("b", 30),
        layer("c", 20),
        layer("d", 5),
    ];
    collect(&fleet, layers, &["d", "c"]).await;
    let deleted = fleet.audit("artifact.gc_deleted").await;
    assert_eq!(deleted.len(), 2, "{deleted:?}");
    for entry in &deleted {
        assert_eq!(entry["payload"]["reason"], "over_max", "{entry}");
    }
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn a_host_that_fails_or_uses_it_keeps_the_record() {
    let fleet = Fleet::start(collecting(60, 0)).await;
    // Keeps the fleet's first layer.
    fleet.create("b").await.is(201);
    fleet
        .agent
        .fail(Step::DeleteSnapshot, 1, 500, "the disk is broken");
    collect(&fleet, vec![layer("a", 70)], &["a"]).await;
    let path = "/v1/snapshots/a";
    let failed = |answer: &Answer| answer.json["state"] == "error";
    let record = fleet.fuse.until(path, failed).await;
    let error = record.json["last_error"].as_str().unwrap();
    assert!(error.contains("the disk is broken"), "{error}");
    assert_eq!(fleet.audit("artifact.gc_failed").await.len(), 1);
    // For as long as the test runs: the next cycle would delete it.
    fleet
        .agent
        .fail(Step::DeleteSnapshot, 1000, 409, "a vm boots from it");
    collect(&fleet, vec![layer("b", 70)], &["b", "a"]).await;
    while fleet.agent.count(Step::DeleteSnapshot, "b") == 0 {
        tokio::task::yield_now().await;
    }
    let ready = |answer: &Answer| answer.json["state"] == "ready";
    fleet.fuse.until("/v1/snapshots/b", ready).await;
    fleet.fuse.stop().await;
}

#[tokio::test]
async fn a_copy_goes_when_what_it_was_made_of_has_gone() {
    let fleet = Fleet::start(collecting(0, 0)).await;
    let copy = |id: &str, digest: &str| Snapshot {
        environment_id: None,
        layer_key: String::new(),
        digest: digest.repeat(64),
        ..layer(id, 30)
    };
    let source = Snapshot {
        mode: "manual".to_owned(),
        digest: "e".repeat(64),
        ..layer("source", 40)
    };
    let layers = vec![source, copy("stray", "f"), copy("copy", "e")];
    collect(&fleet, layers, &["copy", "source"]).await;
    let deleted = fleet.audit("artifact.gc_deleted").await;
    assert_eq!(deleted[0]["payload"]["reason"], "stray", "{deleted:?}");
    fleet.fuse.stop().await;
}
