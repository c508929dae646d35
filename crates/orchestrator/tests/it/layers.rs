//! The collection of layers that nobody uses, against fake hosts.

use std::time::Duration;

use fuse_control::Settings;
use fuse_model::{EnvironmentId, HostId, Snapshot, SnapshotId, SnapshotKind, SnapshotState};
use fuse_store::SnapshotChange;
use fuse_testkit::fake_agent::Step;
use jiff::Timestamp;

use crate::artifacts::Fleet;
use crate::support::Answer;

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
