//! GPU inventory, units that are bound to environments, checks of agents, the breaker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fuse_model::{
    Backend, Environment, EnvironmentSpec, Evict, GpuDevice, Host, HostState, MigInstance,
};
use fuse_store::{Breaker, HostRegistration, Inserted, NewEnvironment, Registered, Store};
use tokio::task::JoinSet;

use crate::support::*;

contract! {
    units_are_bound_in_order_and_given_back,
    no_unit_is_sold_twice,
    a_probe_replaces_what_the_agent_said,
    checks_are_kept_beside_the_host,
    boots_that_fail_in_a_row_quarantine_the_host,
}

fn gpu_registration(id: &str) -> HostRegistration {
    let mut registration = registration(id, 100, 100);
    registration.backend = Backend::Qemu;
    let capacity = &mut registration.capacity;
    capacity.gpus = 4;
    capacity.gpu_devices = (0..4)
        .map(|n| GpuDevice {
            uuid: format!("GPU-{id}-{n}"),
            model: if n == 0 { "H100" } else { "NVIDIA A100" }.to_owned(),
            ..GpuDevice::default()
        })
        .collect();
    capacity.mig_profiles = [("1g.10gb".to_owned(), 3)].into();
    capacity.mig_instances = (0..5)
        .map(|n| MigInstance {
            uuid: format!("MIG-{id}-{n}"),
            profile: "1g.10gb".to_owned(),
            kind: "a100".to_owned(),
            parent_gpu_uuid: format!("GPU-{id}-3"),
        })
        .collect();
    registration
}

async fn add_gpu_host(store: &Store, id: &str) -> Host {
    match store
        .host_upsert(gpu_registration(id), Vec::new())
        .await
        .expect("stores")
    {
        Registered::Stored(host) => *host,
        other @ Registered::BackendInUse(_) => panic!("{other:?}"),
    }
}

fn with_gpus(task: &str, gpus: i32, kind: &str, profile: &str, hosts: &[&str]) -> NewEnvironment {
    let mut new = new_environment(task, 1, hosts);
    new.spec = EnvironmentSpec {
        gpus,
        gpu_kind: kind.to_owned(),
        gpu_profile: profile.to_owned(),
        ..new.spec
    };
    new.charge = new.spec.resources();
    new
}

async fn make(store: &Store, new: NewEnvironment) -> Option<(Environment, Vec<String>)> {
    match store
        .environment_insert_and_reserve(new)
        .await
        .expect("answers")
    {
        Inserted::Created(made) => {
            let units = store.environment_gpu_uuids(&made.id).await.expect("reads");
            Some((made, units))
        }
        Inserted::NoCapacity => None,
        other @ (Inserted::TaskAssigned(_) | Inserted::KeyTaken) => panic!("{other:?}"),
    }
}

async fn host(store: &Store, id: &str) -> Host {
    let host = store.host_get(&host_id(id)).await.expect("reads");
    host.expect("is there")
}

async fn units_are_bound_in_order_and_given_back(db: Db) {
    let store = db.open().await;
    let registered = add_gpu_host(&store, "g").await;
    assert_eq!(registered.capacity, gpu_registration("g").capacity);

    // Two of the kind, in the order of the inventory.
    let new = with_gpus("t1", 2, "a100", "", &["g"]);
    let (first, units) = make(&store, new).await.expect("fits");
    assert_eq!(units, ["GPU-g-1", "GPU-g-2"]);
    // One of the kind is left, though two of the host are.
    let new = with_gpus("t2", 2, "a100", "", &["g"]);
    assert_eq!(make(&store, new).await, None);
    // Instances are a pool of their own, and the declared count bounds it.
    let new = with_gpus("t3", 2, "", "1g.10gb", &["g"]);
    let (_, units) = make(&store, new).await.expect("fits");
    assert_eq!(units, ["MIG-g-0", "MIG-g-1"]);
    let new = with_gpus("t4", 2, "", "1g.10gb", &["g"]);
    assert_eq!(make(&store, new).await, None);

    let now = host(&store, "g").await;
    assert_eq!((now.allocated.gpus, now.allocated.vm_count), (2, 2));
    assert_eq!(now.allocated.cpus, 2, "what was refused is given back");
    assert_eq!(now.allocated.bound.mig_profiles["1g.10gb"], 2);
    assert_eq!(now.allocated.bound.gpu_uuids.len(), 2);
    assert_eq!(store.host_list_all().await.expect("reads"), [now]);

    destroy(&store, &first).await;
    let new = with_gpus("t5", 3, "a100", "", &["g"]);
    let (_, units) = make(&store, new).await.expect("fits again");
    assert_eq!(units, ["GPU-g-1", "GPU-g-2", "GPU-g-3"]);
    // Registering anew keeps what is bound.
    let again = add_gpu_host(&store, "g").await;
    assert_eq!(again.allocated.gpus, 3);
    assert_eq!(again.allocated.bound.gpu_uuids.len(), 3);
}

/// 60 clients of all replicas want 8 devices and 6 instances; some give theirs back.
async fn no_unit_is_sold_twice(db: Db) {
    let mut stores = vec![db.open().await];
    if db.server.is_some() {
        stores.push(db.open().await);
    }
    for id in ["a", "b"] {
        add_gpu_host(&stores[0], id).await;
    }
    let held = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let mut clients = JoinSet::new();
    for n in 0..60usize {
        let (store, held) = (stores[n % stores.len()].clone(), Arc::clone(&held));
        clients.spawn(async move {
            let hosts = [["a", "b"], ["b", "a"]][n / 2 % 2];
            let profile = ["", "1g.10gb"][n / 4 % 2];
            let count = 1 + i32::from(n % 5 == 0);
            let new = with_gpus(&format!("t{n}"), count, "", profile, &hosts);
            let Some((made, units)) = make(&store, new).await else {
                return;
            };
            assert_eq!(units.len(), usize::try_from(count).expect("small"));
            for unit in &units {
                assert!(held.lock().expect("whole").insert(unit.clone()), "{unit}");
            }
            if n % 3 == 0 {
                for unit in &units {
                    held.lock().expect("whole").remove(unit);
                }
                destroy(&store, &made).await;
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.expect("no unit was sold twice");
    }
    let mut bound = BTreeSet::new();
    for host in stores[0].host_list_all().await.expect("reads") {
        let of = host.allocated.bound;
        assert!(of.mig_profiles.get("1g.10gb").copied().unwrap_or(0) <= 3);
        assert_eq!(
            i32::try_from(of.gpu_uuids.len()).expect("small"),
            host.allocated.gpus
        );
        bound.extend(of.gpu_uuids);
        bound.extend(of.mig_instance_uuids);
    }
    assert_eq!(bound, *held.lock().expect("whole"));
    check_invariants(&stores[0]).await;
}

async fn a_probe_replaces_what_the_agent_said(db: Db) {
    let store = db.open().await;
    add_host(&store, "h", 4, 4).await;
    let declared = store.host_declared(&host_id("h")).await.expect("reads");
    assert_eq!(declared, Some(registration("h", 4, 4).declared));
    let id = host_id("x");
    assert_eq!(store.host_declared(&id).await.expect("reads"), None);
    let mut capacity = gpu_registration("h").capacity;
    capacity.cpus = 12;
    let check = answered(Some("2.0"));
    let set = store
        .host_set_capacity(&id, capacity.clone(), check.clone(), Vec::new())
        .await;
    assert_eq!(set.expect("answers"), None);
    let set = store
        .host_set_capacity(&host_id("h"), capacity.clone(), check, Vec::new())
        .await;
    let host = set.expect("stores").expect("is there");
    assert_eq!(host.capacity, capacity);
    assert_eq!(host.agent.expect("was checked").version, "2.0");
}

async fn checks_are_kept_beside_the_host(db: Db) {
    let store = db.open().await;
    let registered = add_host(&store, "h", 4, 4).await;
    let first = registered.agent.clone().expect("was checked");
    assert!(first.is_reachable());
    let gone = answered(None);
    let checks = vec![
        (host_id("h"), gone.clone()),
        // Removed meanwhile.
        (host_id("x"), answered(Some("1.0"))),
    ];
    store
        .host_checks_store(checks, Vec::new())
        .await
        .expect("stores");
    let now = host(&store, "h").await;
    assert_eq!(now.updated_at, registered.updated_at);
    let check = now.agent.expect("was checked");
    assert_eq!(check.error.as_deref(), Some("connection refused"));
    assert_eq!(check.changed_at, check.checked_at);
    // What a failed check does not know stays.
    assert_eq!((&*check.version, check.guests), ("1.0", Some(2)));

    let checks = vec![(host_id("h"), answered(None))];
    store
        .host_checks_store(checks, Vec::new())
        .await
        .expect("stores");
    let later = host(&store, "h").await.agent.expect("was checked");
    assert_eq!(later.changed_at, check.changed_at, "it is still gone");
    store
        .host_remove(&host_id("h"), Vec::new())
        .await
        .expect("removes");
    assert!(store.host_list_all().await.expect("reads").is_empty());
}

async fn boots_that_fail_in_a_row_quarantine_the_host(db: Db) {
    let store = db.open().await;
    let id = add_host(&store, "h", 4, 4).await.id;
    let breaker = Breaker {
        after: 2,
        retry_after: Duration::from_secs(60),
    };
    let fail = || store.host_boot_failed(&id, "no kvm".to_owned(), breaker);
    assert!(!fail().await.expect("notes"));
    // One that works in between starts the count anew.
    assert!(!store.host_boot_worked(&id).await.expect("notes"));
    assert_eq!(host(&store, "h").await.failed_boots, None);
    assert!(!fail().await.expect("notes"));
    assert!(fail().await.expect("notes"), "the second in a row");
    assert!(!fail().await.expect("notes"), "it is in already");
    let boots = host(&store, "h").await.failed_boots.expect("failed");
    assert_eq!((boots.count, &*boots.last_error), (3, "no kvm"));
    let since = boots.quarantined_at.expect("is quarantined");
    let retry_at = boots.retry_at.expect("is tried again");
    assert_eq!(retry_at.duration_since(since).as_secs(), 60);

    store
        .host_retry_failed(&id, "still".to_owned(), Duration::from_secs(5))
        .await
        .expect("notes");
    let boots = host(&store, "h").await.failed_boots.expect("failed");
    assert_eq!((boots.retries, &*boots.last_error), (1, "still"));
    assert!(store.host_boot_worked(&id).await.expect("notes"));
    assert_eq!(host(&store, "h").await.quarantined_at(), None);

    // The operator's word resets it as well.
    fail().await.expect("notes");
    fail().await.expect("notes");
    store
        .host_set_state(&id, (HostState::Active, Evict::None), Vec::new())
        .await
        .expect("sets");
    assert_eq!(host(&store, "h").await.failed_boots, None);
    let unknown = store
        .host_boot_failed(&host_id("x"), String::new(), breaker)
        .await;
    assert!(!unknown.expect("answers"));
}
