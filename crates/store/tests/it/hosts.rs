//! Registering, listing and removing hosts.

use fuse_model::{Arch, Backend, Evict, HostState, Labels};
use fuse_store::{HostRemoval, Page, Registered};

use crate::support::*;

contract! {
    a_host_reads_back_as_registered,
    registering_anew_keeps_what_is_not_declared,
    a_backend_does_not_change_under_environments,
    a_host_with_environments_is_not_removed,
    pages_in_order_of_ids,
}

async fn a_host_reads_back_as_registered(db: Db) {
    let store = db.open().await;
    let mut wanted = registration("h", 16, 20);
    wanted.labels = Labels::from([("disk".to_owned(), "nvme".to_owned())]);
    wanted.backend = Backend::Qemu;
    wanted.capacity.arch = Some(Arch::Arm64);
    wanted.capacity.gpus = 2;
    wanted.capacity.gpu_kind = "a100".to_owned();
    let Registered::Stored(host) = store
        .host_upsert(wanted.clone(), Vec::new())
        .await
        .expect("stores")
    else {
        panic!("is stored");
    };
    assert_eq!(
        (&host.capacity, &host.labels),
        (&wanted.capacity, &wanted.labels)
    );
    assert_eq!(
        (host.state, host.backend),
        (HostState::Active, Backend::Qemu)
    );
    assert_eq!(
        store.host_get(&host_id("h")).await.expect("reads"),
        Some(*host)
    );
    assert_eq!(store.host_get(&host_id("x")).await.expect("reads"), None);
}

async fn registering_anew_keeps_what_is_not_declared(db: Db) {
    let store = db.open().await;
    let first = add_host(&store, "h", 4, 4).await;
    create(&store, "t", 2, &["h"]).await;
    let state = HostState::Draining;
    store
        .host_set_state(&first.id, (state, Evict::Drain), Vec::new())
        .await
        .expect("sets")
        .expect("is");
    let again = add_host(&store, "h", 8, 8).await;
    assert_eq!(
        (again.state, again.evict, again.created_at),
        (HostState::Draining, Evict::Drain, first.created_at)
    );
    assert_eq!((again.allocated.cpus, again.capacity.cpus), (2, 8));
    assert!(again.last_seen >= first.last_seen);
    let unknown = store
        .host_set_state(&host_id("x"), (state, Evict::None), Vec::new())
        .await
        .expect("answers");
    assert_eq!(unknown, None);
    check_invariants(&store).await;
}

async fn a_backend_does_not_change_under_environments(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 4, 4).await;
    let mut other = registration("h", 4, 4);
    other.backend = Backend::Qemu;
    let made = create(&store, "t", 1, &["h"]).await;
    let refused = store
        .host_upsert(other.clone(), Vec::new())
        .await
        .expect("answers");
    assert_eq!(refused, Registered::BackendInUse(1));
    destroy(&store, &made).await;
    let allowed = store.host_upsert(other, Vec::new()).await.expect("answers");
    assert!(matches!(allowed, Registered::Stored(_)));
}

async fn a_host_with_environments_is_not_removed(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 4, 4).await;
    let (b, a) = (
        create(&store, "b", 1, &["h"]).await,
        create(&store, "a", 1, &["h"]).await,
    );
    let remove = || store.host_remove(b.host_id.as_ref().expect("has one"), Vec::new());
    let lowest = id("a");
    assert_eq!(
        remove().await.expect("answers"),
        HostRemoval::Assigned { lowest, count: 2 }
    );
    destroy(&store, &a).await;
    destroy(&store, &b).await;
    assert_eq!(remove().await.expect("answers"), HostRemoval::Removed);
    assert_eq!(remove().await.expect("answers"), HostRemoval::Missing);
}

async fn pages_in_order_of_ids(db: Db) {
    let store = db.open().await;
    for host in ["b", "a", "c"] {
        add_host(&store, host, 1, 1).await;
    }
    let page = |after: Option<&str>| Page {
        after: after.map(host_id),
        limit: 2,
    };
    let first = store.host_list(&page(None)).await.expect("lists");
    let ids: Vec<_> = first.items.iter().map(|host| host.id.as_str()).collect();
    assert_eq!((ids, first.next), (vec!["a", "b"], Some(host_id("b"))));
    let last = store.host_list(&page(Some("b"))).await.expect("lists");
    assert_eq!((last.items.len(), last.next), (1, None));
}
