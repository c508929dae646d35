//! Snapshots that move to another host, against fake hosts.

use std::time::Duration;

use fuse_control::Settings;
use fuse_testkit::fake_agent::{FakeAgent, Step, TOKEN};
use fuse_wire_host::Capacity;
use serde_json::{Value, json};

use crate::support::{Answer, Options, Orchestrator, with_agent};

const SNAPSHOTS: &str = "/v1/environments/fuse-a/snapshots";

/// Two hosts, `h` and `other`; an environment with a file in it and a layer of it on `h`.
pub(crate) struct Fleet {
    pub(crate) fuse: Orchestrator,
    pub(crate) agent: FakeAgent,
    other: FakeAgent,
    pub(crate) layer: Value,
}

impl Fleet {
    pub(crate) async fn start(settings: Settings) -> Self {
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
    pub(crate) async fn create(&self, task: &str) -> Answer {
        self.create_on(task, json!({})).await
    }

    async fn create_on(&self, task: &str, spec: Value) -> Answer {
        let body = json!({
            "task_id": task, "seed_snapshot_id": self.layer["id"], "spec": spec
        });
        self.fuse.create(&body).await
    }

    pub(crate) async fn snapshots(&self, query: &str) -> Vec<Value> {
        let list = self.fuse.get(&format!("/v1/snapshots?{query}")).await;
        list.is(200)["snapshots"].as_array().unwrap().clone()
    }

    pub(crate) async fn audit(&self, kind: &str) -> Vec<Value> {
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
