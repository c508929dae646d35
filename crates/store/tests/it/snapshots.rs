//! Snapshot records: listing, layers, quota, collection.

use std::time::Duration;

use fuse_model::{
    AuditEntry, AuditKind, Environment, EnvironmentId, HostId, OperationKind, Snapshot,
    SnapshotExport, SnapshotId, SnapshotKind, SnapshotState as S, Trigger,
};
use fuse_store::{
    AuditFilter, Change, Guarded, OperationChange, Page, SnapshotChange, SnapshotFilter, Store,
    later,
};
use jiff::Timestamp;

use crate::support::*;

contract! {
    a_record_reads_as_it_was_written,
    pages_go_from_new_to_old,
    a_layer_is_found_by_tenant_key_and_arch,
    quota_counts_what_is_there_but_layers,
    only_a_leaf_may_go,
    retention_spares_parents_the_newest_and_layers,
    lineage_goes_with_its_environment,
    one_in_the_making_is_completed_or_given_up,
    holders_are_of_one_tenant_digest_and_base_image,
    what_is_needed_is_marked,
    what_was_used_meanwhile_is_not_collected,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a time")
}

fn snapshot(id: &str, vm: &str, second: i64) -> Snapshot {
    Snapshot {
        id: SnapshotId::new(id),
        environment_id: Some(EnvironmentId::new(vm)),
        task_id: "t".to_owned(),
        host_id: None,
        tenant: "t".to_owned(),
        owner: String::new(),
        parent_id: String::new(),
        mode: "manual".to_owned(),
        state: S::Ready,
        kind: SnapshotKind::Disk,
        layer_key: String::new(),
        arch: "amd64".to_owned(),
        digest: String::new(),
        size_bytes: 10,
        retention_until: None,
        metadata: [("name".to_owned(), format!("name-{id}"))].into(),
        base_digest: String::new(),
        exports: Vec::new(),
        last_error: String::new(),
        created_at: at(second),
        updated_at: at(second),
    }
}

async fn insert(store: &Store, snapshot: Snapshot) {
    store
        .snapshot_insert(snapshot, Vec::new(), None)
        .await
        .expect("inserts");
}

async fn ids(store: &Store, filter: &SnapshotFilter) -> Vec<String> {
    let page = Page {
        after: None,
        limit: 100,
    };
    let listing = store.snapshot_list(filter, &page).await.expect("lists");
    listing
        .items
        .into_iter()
        .map(|item| item.id.into_string())
        .collect()
}

async fn a_record_reads_as_it_was_written(db: Db) {
    let store = db.open().await;
    let mut written = snapshot("s", "vm", 0);
    written.kind = SnapshotKind::Live;
    written.retention_until = Some(at(60));
    written.exports = vec![SnapshotExport {
        destination: "s3://x".to_owned(),
        status: "pending".to_owned(),
        requested_at: at(0),
        updated_at: at(0),
        last_error: String::new(),
    }];
    let audit = vec![AuditEntry::new(AuditKind::SnapshotCreated, "vm").with("snapshot_id", "s")];
    store
        .snapshot_insert(written.clone(), audit, None)
        .await
        .expect("inserts");
    let id = SnapshotId::new("s");
    assert_eq!(store.snapshot_get(&id).await.expect("reads"), Some(written));
    let page = Page {
        after: None,
        limit: 5,
    };
    let log = store
        .audit_list(&AuditFilter::default(), &page)
        .await
        .expect("reads");
    assert_eq!(log.items[0].kind, "snapshot.created");
    // The id is the host's; two hosts that choose the same one do not share a record.
    let again = store.snapshot_insert(snapshot("s", "vm", 1), Vec::new(), None);
    assert!(again.await.is_err());
}

async fn one_in_the_making_is_completed_or_given_up(db: Db) {
    let store = db.open().await;
    let running = create(&store, "t", 1, &[]).await;
    let begin = Change {
        operation: OperationChange::Begin(OperationKind::Snapshot, Duration::from_secs(60)),
        ..Change::default()
    };
    let Guarded::Updated(busy) = store
        .environment_transition(&running, Trigger::Started, begin)
        .await
        .expect("changes")
    else {
        panic!("is there");
    };
    let creating = |id: &str, vm: &str| Snapshot {
        state: S::Creating,
        owner: "ak_1".to_owned(),
        ..snapshot(id, vm, 0)
    };
    let vm = busy.id.as_str();
    insert(&store, creating("whole", vm)).await;
    insert(&store, creating("left", vm)).await;
    insert(&store, creating("gone", "nobody")).await;
    insert(&store, snapshot("ready", "nobody", 0)).await;
    let owned = SnapshotFilter {
        owner: Some("ak_1".to_owned()),
        ..SnapshotFilter::default()
    };
    assert_eq!(ids(&store, &owned).await, ["whole", "left", "gone"]);
    let making = store.snapshot_list_creating(&busy.id).await.expect("lists");
    assert_eq!(making.len(), 2);

    let mut taken = creating("whole", vm);
    (taken.kind, taken.size_bytes, taken.digest) = (SnapshotKind::Live, 7, "d".to_owned());
    let complete = |of: Snapshot| store.snapshot_complete(of, Vec::new());
    assert!(complete(taken.clone()).await.expect("completes"));
    assert!(!complete(taken).await.expect("answers"), "it is ready");
    let id = SnapshotId::new("whole");
    let whole = store.snapshot_get(&id).await.expect("reads").expect("is");
    assert_eq!(
        (
            whole.state,
            whole.kind,
            whole.size_bytes,
            whole.digest.as_str()
        ),
        (S::Ready, SnapshotKind::Live, 7, "d")
    );

    let in_state = |state| SnapshotFilter {
        state: Some(state),
        ..SnapshotFilter::default()
    };
    let give_up = || store.snapshot_fail_abandoned("crash".to_owned());
    give_up().await.expect("writes");
    // Somebody is still at work on the one.
    assert_eq!(ids(&store, &in_state(S::Creating)).await, ["left"]);
    assert_eq!(ids(&store, &in_state(S::Error)).await, ["gone"]);
    let end = Change {
        operation: OperationChange::End,
        ..Change::default()
    };
    store.environment_update(&busy, end).await.expect("changes");
    give_up().await.expect("writes");
    assert_eq!(ids(&store, &in_state(S::Error)).await, ["left", "gone"]);
}

async fn pages_go_from_new_to_old(db: Db) {
    let store = db.open().await;
    for (id, second) in [("a", 1), ("b", 3), ("c", 3), ("d", 2)] {
        insert(&store, snapshot(id, "vm", second)).await;
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = Page { after, limit: 1 };
        let listing = store
            .snapshot_list(&SnapshotFilter::default(), &page)
            .await
            .expect("lists");
        seen.extend(listing.items.into_iter().map(|item| item.id.into_string()));
        match listing.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, ["c", "b", "d", "a"]);
    let named = SnapshotFilter {
        name: Some("name-b".to_owned()),
        state: Some(S::Ready),
        environment_id: Some("vm".to_owned()),
        ..SnapshotFilter::default()
    };
    assert_eq!(ids(&store, &named).await, ["b"]);
    let none = SnapshotFilter {
        state: Some(S::Error),
        ..SnapshotFilter::default()
    };
    assert!(ids(&store, &none).await.is_empty());
    let newest = store.snapshot_newest(&EnvironmentId::new("vm")).await;
    assert_eq!(newest.expect("reads").expect("one").id.as_str(), "c");
}

async fn a_layer_is_found_by_tenant_key_and_arch(db: Db) {
    let store = db.open().await;
    let layer = |id: &str, second| Snapshot {
        layer_key: "key".to_owned(),
        mode: "build".to_owned(),
        tenant: "ak_1".to_owned(),
        ..snapshot(id, "vm", second)
    };
    insert(&store, layer("old", 0)).await;
    insert(&store, layer("new", 1)).await;
    let broken = Snapshot {
        state: S::Error,
        ..layer("broken", 2)
    };
    insert(&store, broken).await;
    let resolve = async |tenant: &str, key: &str, arch: &str| {
        let found = store.snapshot_resolve(tenant, key, arch).await;
        found.expect("reads").map(|found| found.id.into_string())
    };
    assert_eq!(
        resolve("ak_1", "key", "amd64").await.as_deref(),
        Some("new")
    );
    for (tenant, key, arch) in [
        ("", "key", "amd64"),
        ("ak_1", "other", "amd64"),
        ("ak_1", "key", "arm64"),
        ("ak_1", "", "amd64"),
    ] {
        assert_eq!(
            resolve(tenant, key, arch).await,
            None,
            "{tenant} {key} {arch}"
        );
    }
}

async fn quota_counts_what_is_there_but_layers(db: Db) {
    let store = db.open().await;
    insert(&store, snapshot("a", "vm", 0)).await;
    insert(&store, snapshot("b", "vm", 1)).await;
    for (id, state, mode) in [
        ("c", S::Error, "manual"),
        ("d", S::Deleting, "manual"),
        ("e", S::Ready, "build"),
    ] {
        let other = Snapshot {
            state,
            mode: mode.to_owned(),
            ..snapshot(id, "vm", 2)
        };
        insert(&store, other).await;
    }
    let usage = store.snapshot_usage("t").await.expect("counts");
    assert_eq!((usage.count, usage.bytes), (2, 20));
    let usage = store.snapshot_usage("nobody").await.expect("counts");
    assert_eq!((usage.count, usage.bytes), (0, 0));
}

async fn only_a_leaf_may_go(db: Db) {
    let store = db.open().await;
    insert(&store, snapshot("parent", "vm", 0)).await;
    let child = Snapshot {
        parent_id: "parent".to_owned(),
        ..snapshot("child", "vm", 1)
    };
    insert(&store, child).await;
    let (parent, child) = (SnapshotId::new("parent"), SnapshotId::new("child"));
    let delete = || SnapshotChange {
        if_leaf: true,
        ..SnapshotChange::new(&[S::Ready, S::Error], S::Deleting)
    };
    let change = async |id: &SnapshotId, change| store.snapshot_change(id, change).await;
    assert!(store.snapshot_has_child(&parent).await.expect("reads"));
    assert_eq!(change(&parent, delete()).await.expect("writes"), None);
    let moved = change(&child, delete()).await.expect("writes");
    assert_eq!(moved.expect("moved").state, S::Deleting);
    // Twice is once, and a child on its way out is none.
    assert_eq!(change(&child, delete()).await.expect("writes"), None);
    assert!(
        change(&parent, delete())
            .await
            .expect("writes")
            .is_some_and(|moved| moved.state == S::Deleting)
    );
    let remove = || store.snapshot_remove(&child, Vec::new());
    assert!(remove().await.expect("removes"));
    assert!(!remove().await.expect("removes"));
}

async fn retention_spares_parents_the_newest_and_layers(db: Db) {
    let store = db.open().await;
    let past = Some(later(at(0), Duration::from_secs(1)));
    let old = |id: &str, second| Snapshot {
        retention_until: past,
        ..snapshot(id, "fuse-a", second)
    };
    let environment = start(&store, &create(&store, "a", 1, &[]).await).await;
    insert(&store, old("gone", 0)).await;
    insert(&store, old("parent", 1)).await;
    let layer = Snapshot {
        mode: "build".to_owned(),
        ..old("layer", 2)
    };
    insert(&store, layer).await;
    let kept = Snapshot {
        retention_until: None,
        ..old("kept", 3)
    };
    insert(&store, kept).await;
    let newest = Snapshot {
        parent_id: "parent".to_owned(),
        ..old("newest", 4)
    };
    insert(&store, newest).await;
    let deleting = Snapshot {
        state: S::Deleting,
        retention_until: None,
        ..snapshot("deleting", "other", 5)
    };
    insert(&store, deleting).await;
    let collectable = store.snapshot_list_collectable(10).await.expect("lists");
    let ids: Vec<&str> = collectable.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["gone", "deleting"]);
    // Once the environment is gone, nothing will be restored into it.
    destroy(&store, &environment).await;
    let collectable = store.snapshot_list_collectable(10).await.expect("lists");
    let ids: Vec<&str> = collectable.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["gone", "newest", "deleting"]);
}

async fn lineage_goes_with_its_environment(db: Db) {
    let store = db.open().await;
    create(&store, "a", 1, &[]).await;
    insert(&store, snapshot("fork-seed-1", "fuse-a", 0)).await;
    insert(&store, snapshot("fork-seed-2", "fuse-gone", 0)).await;
    insert(&store, snapshot("snap-1", "fuse-gone", 0)).await;
    let pruned = store.snapshot_prune_lineage("fork-seed-", 10).await;
    pruned.expect("prunes");
    let left = ids(&store, &SnapshotFilter::default()).await;
    assert_eq!(left, ["snap-1", "fork-seed-1"]);
}

async fn holders_are_of_one_tenant_digest_and_base_image(db: Db) {
    let store = db.open().await;
    let on = |id: &str, host: &str| Snapshot {
        host_id: Some(HostId::new(host)),
        digest: "d".repeat(64),
        base_digest: "b".repeat(64),
        ..snapshot(id, "vm", 0)
    };
    let seed = on("s2", "b");
    for other in [
        seed.clone(),
        on("s1", "b"),
        on("s3", "a"),
        Snapshot {
            state: S::Error,
            ..on("x1", "c")
        },
        Snapshot {
            tenant: "u".to_owned(),
            ..on("x2", "d")
        },
        Snapshot {
            base_digest: "c".repeat(64),
            ..on("x3", "e")
        },
        Snapshot {
            digest: "e".repeat(64),
            ..on("x4", "f")
        },
        Snapshot {
            kind: SnapshotKind::Live,
            ..on("x5", "g")
        },
        Snapshot {
            host_id: None,
            ..on("x6", "")
        },
    ] {
        insert(&store, other).await;
    }
    let holders = store.snapshot_holders(&seed).await.expect("reads");
    let holders: Vec<_> = holders
        .iter()
        .map(|one| (one.host.as_str(), one.snapshot.as_str()))
        .collect();
    assert_eq!(holders, [("a", "s3"), ("b", "s1")]);
    let blind = Snapshot {
        digest: String::new(),
        ..seed
    };
    assert!(
        store
            .snapshot_holders(&blind)
            .await
            .expect("reads")
            .is_empty()
    );
}

/// Layers and copies of every kind, and an environment that was started from one.
async fn layers(store: &Store) -> Environment {
    let layer = |id: &str, second| Snapshot {
        mode: "build".to_owned(),
        layer_key: "k".to_owned(),
        digest: "d".repeat(64),
        ..snapshot(id, "vm", second)
    };
    let copy = |id: &str, digest: &str, second| Snapshot {
        environment_id: None,
        layer_key: String::new(),
        digest: digest.repeat(64),
        ..layer(id, second)
    };
    let child = Snapshot {
        parent_id: "parent".to_owned(),
        ..layer("child", 3)
    };
    let named = Snapshot {
        layer_key: String::new(),
        ..layer("named", 6)
    };
    let manual = Snapshot {
        mode: "manual".to_owned(),
        ..layer("manual", 7)
    };
    let deleting = Snapshot {
        state: S::Deleting,
        ..layer("deleting", 8)
    };
    let (seed, parent) = (layer("seed", 1), layer("parent", 2));
    let copies = [copy("copy", "d", 4), copy("stray", "e", 5)];
    for one in [seed, parent, child, named, manual, deleting] {
        insert(store, one).await;
    }
    for one in copies {
        insert(store, one).await;
    }
    let environment = create(store, "a", 1, &[]).await;
    let seed = SnapshotId::new("seed");
    let noted = store.environment_note_seed(&environment.id, &seed).await;
    noted.expect("notes");
    environment
}

async fn what_is_needed_is_marked(db: Db) {
    let store = db.open().await;
    let environment = layers(&store).await;
    let cached = store.snapshot_list_cached().await.expect("lists");
    let told: Vec<_> = cached
        .iter()
        .map(|one| (one.snapshot.id.as_str(), one.is_held, one.is_stray))
        .collect();
    let wanted = [
        ("parent", true, false),
        ("child", false, false),
        ("copy", false, false),
        ("stray", false, true),
        // It was used last: an environment was started from it.
        ("seed", true, false),
    ];
    assert_eq!(told, wanted);
    assert_eq!(cached[0].used_at, at(2));
    // With the environment goes what it needed, and one that is gone has no seed.
    destroy(&store, &environment).await;
    let child = SnapshotId::new("child");
    let noted = store.environment_note_seed(&environment.id, &child).await;
    noted.expect("notes nothing");
    let cached = store.snapshot_list_cached().await.expect("lists");
    let held = cached.iter().filter(|one| one.is_held);
    let held: Vec<_> = held.map(|one| one.snapshot.id.as_str()).collect();
    assert_eq!(held, ["parent"]);
}

async fn what_was_used_meanwhile_is_not_collected(db: Db) {
    let store = db.open().await;
    let environment = layers(&store).await;
    let collect = async |id: &str, since| {
        let change = SnapshotChange {
            if_unused_since: Some(since),
            ..SnapshotChange::new(&[S::Ready], S::Deleting)
        };
        let changed = store.snapshot_change(&SnapshotId::new(id), change).await;
        changed.expect("writes").is_some()
    };
    let now = Timestamp::now;
    assert!(!collect("seed", now()).await, "an environment is there");
    assert!(!collect("child", at(2)).await, "it was used since");
    let touch = async |id| store.snapshot_touch(&SnapshotId::new(id)).await;
    assert!(touch("child").await.expect("writes"));
    assert!(!collect("child", at(4)).await);
    assert!(collect("stray", at(5)).await);
    assert!(!touch("stray").await.expect("writes"), "it is going");
    destroy(&store, &environment).await;
    assert!(collect("seed", now()).await);
}
