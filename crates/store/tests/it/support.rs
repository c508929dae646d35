//! Databases to run the contract on, and short ways to say what a test is about.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fuse_model::{
    AgentCheck, AuditEntry, AuditKind, Backend, Capacity, Environment, EnvironmentEvent,
    EnvironmentId, EnvironmentSpec, Host, HostId, Labels, OperationKind, Redacted, State, Task,
    TaskId, Trigger,
};
use fuse_store::{
    Change, EnvironmentFilter, Guarded, HostRegistration, Inserted, NewEnvironment,
    OperationChange, Page, Registered, Removal, Store, TaskChange, Vault,
};
use fuse_testkit::SkipReason;
use fuse_testkit::postgres::{Durability, Postgres};
use tempfile::TempDir;

/// A database, and a store open on it.
#[derive(Debug)]
pub(crate) struct Db {
    url: Option<String>,
    /// The PostgreSQL server, where it is one.
    pub(crate) server: Option<Arc<Postgres>>,
    _dir: Option<TempDir>,
}

impl Db {
    pub(crate) fn memory() -> Self {
        Self {
            url: None,
            server: None,
            _dir: None,
        }
    }

    pub(crate) fn file() -> Self {
        let dir = tempfile::tempdir().expect("makes a directory");
        Self {
            url: Some(format!("sqlite://{}/fuse.db", dir.path().display())),
            server: None,
            _dir: Some(dir),
        }
    }

    pub(crate) fn postgres(server: &Arc<Postgres>) -> Self {
        Self {
            url: Some(server.database().expect("makes a database")),
            server: Some(Arc::clone(server)),
            _dir: None,
        }
    }

    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// Opens the database; on PostgreSQL as often as wanted.
    pub(crate) async fn open(&self) -> Store {
        Store::open(self.url(), vault()).await.expect("opens")
    }
}

pub(crate) fn vault() -> Vault {
    Vault::new(&Redacted::new([7; 32]), None)
}

/// A server for one test, or `None` (said on stderr) where there is none.
pub(crate) fn start_postgres(test: &str, durability: Durability) -> Option<Arc<Postgres>> {
    match Postgres::start(durability) {
        Ok(server) => Some(Arc::new(server)),
        Err(error) if error.is::<SkipReason>() => {
            fuse_testkit::report_skip(test, &error.to_string());
            None
        }
        Err(error) => panic!("{error:#}"),
    }
}

/// Makes a test of each case for each engine. The PostgreSQL cases share one
/// server, and so one test.
macro_rules! contract {
    ($($case:ident),* $(,)?) => {
        mod memory {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(crate::support::Db::memory()).await;
                }
            )*
        }

        mod file {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(crate::support::Db::file()).await;
                }
            )*
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn postgres() {
            use fuse_testkit::postgres::Durability;

            let test = concat!(module_path!(), "::postgres");
            let server = crate::support::start_postgres(test, Durability::Careless);
            let Some(server) = server else { return };
            $(
                eprintln!("case {}", stringify!($case));
                $case(crate::support::Db::postgres(&server)).await;
            )*
        }
    };
}

pub(crate) fn id(text: &str) -> EnvironmentId {
    EnvironmentId::new(format!("fuse-{text}"))
}

pub(crate) fn host_id(text: &str) -> HostId {
    HostId::new(text)
}

pub(crate) fn spec(cpus: i32) -> EnvironmentSpec {
    EnvironmentSpec {
        cpus,
        ram_mb: cpus * 512,
        storage_gb: 1,
        ..EnvironmentSpec::default()
    }
}

pub(crate) fn new_environment(task: &str, cpus: i32, candidates: &[&str]) -> NewEnvironment {
    NewEnvironment {
        id: id(task),
        task_id: TaskId::new(task),
        tenant: String::new(),
        spec: spec(cpus),
        charge: spec(cpus).resources(),
        candidates: candidates.iter().copied().map(HostId::new).collect(),
        seed_holders: Vec::new(),
        has_probe: false,
        overcommit: false,
        request: format!("{{\"task_id\":\"{task}\"}}"),
        secrets: Redacted::new(BTreeMap::new()),
        operation: OperationKind::Create,
        operation_ttl: Duration::from_secs(60),
        audit: vec![
            AuditEntry::new(AuditKind::VmProvisioning, format!("fuse-{task}")),
            AuditEntry::new(AuditKind::VmScheduled, format!("fuse-{task}")),
        ],
        idempotency: None,
    }
}

pub(crate) fn registration(id: &str, cpus: i32, slots: i32) -> HostRegistration {
    HostRegistration {
        id: host_id(id),
        url: format!("http://{id}:8090"),
        token: Redacted::new("agent-token-of-the-host".to_owned()),
        region: "us".to_owned(),
        backend: Backend::Firecracker,
        labels: Labels::new(),
        capacity: Capacity {
            cpus,
            ram_mb: cpus * 512,
            storage_gb: 1000,
            vm_count: slots,
            ..Capacity::default()
        },
        declared: Capacity {
            vm_count: slots,
            ..Capacity::default()
        },
        check: answered(Some("1.0")),
    }
}

/// A check of an agent that answered with this release, or did not answer.
pub(crate) fn answered(version: Option<&str>) -> AgentCheck {
    let now = fuse_model::now();
    AgentCheck {
        checked_at: now,
        changed_at: now,
        error: version.is_none().then(|| "connection refused".to_owned()),
        version: version.unwrap_or_default().to_owned(),
        guests: version.map(|_| 2),
        disk_free_gb: version.map(|_| 100),
    }
}

pub(crate) async fn add_host(store: &Store, id: &str, cpus: i32, slots: i32) -> Host {
    let registered = store
        .host_upsert(registration(id, cpus, slots), Vec::new())
        .await;
    match registered.expect("stores") {
        Registered::Stored(host) => *host,
        other @ Registered::BackendInUse(_) => panic!("{other:?}"),
    }
}

/// Creates an environment that must succeed.
pub(crate) async fn create(store: &Store, task: &str, cpus: i32, hosts: &[&str]) -> Environment {
    let new = new_environment(task, cpus, hosts);
    created(
        store
            .environment_insert_and_reserve(new)
            .await
            .expect("inserts"),
    )
}

pub(crate) fn created(inserted: Inserted) -> Environment {
    match inserted {
        Inserted::Created(environment) => environment,
        other @ (Inserted::TaskAssigned(_) | Inserted::NoCapacity | Inserted::KeyTaken) => {
            panic!("{other:?}")
        }
    }
}

pub(crate) fn running() -> Change {
    Change {
        url: Some("10.0.0.1:19551".to_owned()),
        task: TaskChange::Running,
        operation: OperationChange::End,
        ..Change::default()
    }
}

pub(crate) async fn start(store: &Store, seen: &Environment) -> Environment {
    let result = store
        .environment_transition(seen, Trigger::Started, running())
        .await;
    updated(result.expect("starts"))
}

/// Destroys an environment in any state, as a DELETE does.
pub(crate) async fn destroy(store: &Store, seen: &Environment) {
    let change = Change {
        task: TaskChange::Failed("vm force destroyed".to_owned()),
        ..Change::default()
    };
    let trigger = Trigger::DestroyRequested;
    let seen = updated(
        store
            .environment_transition(seen, trigger, change)
            .await
            .expect("moves"),
    );
    let trigger = Trigger::DestroyConfirmed;
    let end = store
        .environment_remove(&seen, trigger, Removal::default())
        .await;
    updated(end.expect("removes"));
}

pub(crate) fn updated<T: std::fmt::Debug>(guarded: Guarded<T>) -> T {
    match guarded {
        Guarded::Updated(value) => value,
        other @ (Guarded::Stale | Guarded::Missing | Guarded::Busy(_)) => panic!("{other:?}"),
    }
}

pub(crate) async fn get(store: &Store, id: &EnvironmentId) -> Option<Environment> {
    store.environment_get(id).await.expect("reads")
}

/// A task that must be known.
pub(crate) async fn task_of(store: &Store, id: &str) -> Task {
    store
        .task_get(&TaskId::new(id))
        .await
        .expect("reads")
        .expect("is known")
}

pub(crate) async fn all_environments(store: &Store) -> Vec<Environment> {
    let page = Page {
        after: None,
        limit: 100_000,
    };
    let filter = EnvironmentFilter::default();
    store
        .environment_list(&filter, &page)
        .await
        .expect("lists")
        .items
}

pub(crate) async fn all_events(store: &Store) -> Vec<EnvironmentEvent> {
    store.event_list_after(0, 1_000_000).await.expect("lists")
}

/// Checks what must hold between the records at any time: charges add up, no
/// host is oversold, each environment has its task, each stream its order.
pub(crate) async fn check_invariants(store: &Store) {
    let (environments, hosts) = (
        all_environments(store).await,
        store.host_list_all().await.expect("lists"),
    );
    for host in &hosts {
        let mine: Vec<_> = environments
            .iter()
            .filter(|e| e.host_id.as_ref() == Some(&host.id))
            .collect();
        let sum = |get: fn(&EnvironmentSpec) -> i32| mine.iter().map(|e| get(&e.spec)).sum::<i32>();
        assert_eq!(host.allocated.cpus, sum(|s| s.cpus), "cpus of {}", host.id);
        assert_eq!(
            host.allocated.ram_mb,
            sum(|s| s.ram_mb),
            "memory of {}",
            host.id
        );
        assert_eq!(
            host.allocated.storage_gb,
            sum(|s| s.storage_gb),
            "disk of {}",
            host.id
        );
        assert_eq!(
            usize::try_from(host.allocated.vm_count).expect("fits"),
            mine.len()
        );
        assert!(host.free().cpus >= 0 && host.free().ram_mb >= 0 && host.free_slots() >= 0);
    }
    for environment in &environments {
        if let Some(task) = &environment.task_id {
            let task = store
                .task_get(task)
                .await
                .expect("reads")
                .expect("has its task");
            assert_eq!(task.environment_id, environment.id);
        }
    }
    check_streams(&environments, &all_events(store).await);
}

/// Every stream is a run of legal steps from `provisioning`, ends where the
/// record is, and has no event twice.
fn check_streams(environments: &[Environment], events: &[EnvironmentEvent]) {
    let mut last: BTreeMap<&EnvironmentId, State> = BTreeMap::new();
    let mut place = 0;
    for event in events {
        assert!(event.id.sequence() > place, "events out of order");
        place = event.id.sequence();
        let before = last.insert(&event.environment_id, event.state);
        let legal = match event.state {
            State::Provisioning => before.is_none_or(State::is_terminal),
            State::Running => before == Some(State::Provisioning),
            State::Failed => before != Some(State::Running),
            State::Draining => before == Some(State::Running),
            State::Destroying => before.is_some_and(|state| !state.is_terminal()),
            State::Destroyed => before == Some(State::Destroying),
        };
        assert!(
            legal,
            "{} went from {before:?} to {}",
            event.environment_id, event.state
        );
    }
    for environment in environments {
        assert_eq!(
            last.get(&environment.id),
            Some(&environment.state),
            "{}",
            environment.id
        );
        last.remove(&environment.id);
    }
    for (id, state) in last {
        assert!(
            state.is_terminal(),
            "{id} is gone and its stream ends in {state}"
        );
    }
}
