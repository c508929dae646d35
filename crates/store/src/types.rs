//! What callers hand to the store and get back, beyond the domain types.

use std::collections::BTreeMap;
use std::time::Duration;

use fuse_model::{
    AgentCheck, ApiKeyId, AuditEntry, Backend, Capacity, Endpoint, Environment, EnvironmentId,
    EnvironmentSpec, HostId, Labels, Operation, OperationKind, Redacted, Resources, State, TaskId,
};
use jiff::Timestamp;
use serde_json::{Map, Value};

/// The secrets of an environment by name.
pub type SecretMap = BTreeMap<String, String>;

/// Where the state lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// SQLite in memory: gone with the process.
    Memory,
    /// One SQLite file, one process.
    File,
    /// PostgreSQL, any number of processes.
    Postgres,
}

impl Engine {
    /// Whether the state survives the process.
    pub const fn is_durable(self) -> bool {
        match self {
            Self::Memory => false,
            Self::File | Self::Postgres => true,
        }
    }
}

/// An environment that is to be made.
#[derive(Debug, Clone)]
pub struct NewEnvironment {
    /// Its id.
    pub id: EnvironmentId,
    /// Its task.
    pub task_id: TaskId,
    /// Who asks.
    pub tenant: String,
    /// What is asked for.
    pub spec: EnvironmentSpec,
    /// What that takes from its host.
    pub charge: Resources,
    /// Hosts in order of preference; it is charged to the first one that still
    /// fits. Empty: the default backend, charged nowhere.
    pub candidates: Vec<HostId>,
    /// Hosts that have what it starts from; none: it starts from an image.
    pub seed_holders: Vec<HostId>,
    /// Its workload is probed.
    pub has_probe: bool,
    /// Charge the first candidate although it does not fit.
    pub overcommit: bool,
    /// The create request as JSON, without secrets: what recovery needs.
    pub request: String,
    /// Its secrets; kept only if the store has a key.
    pub secrets: Redacted<SecretMap>,
    /// What makes it: a create, or a migration whose target it is.
    pub operation: OperationKind,
    /// How long that may take before others consider it interrupted.
    pub operation_ttl: Duration,
    /// Entries to write with it. One of kind `vm.scheduled` gets the chosen
    /// host as `host_id` and, with a seed, whether that has it as `artifact_local`.
    pub audit: Vec<AuditEntry>,
    /// The key that makes a repeat of the request harmless.
    pub idempotency: Option<IdempotentKey>,
}

/// An idempotency key of a tenant's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotentKey {
    /// The caller's key.
    pub key: String,
    /// Digest of the request, to tell a repeat from another use of the key.
    pub fingerprint: [u8; 32],
}

/// What an idempotency key was used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// Digest of the request.
    pub fingerprint: [u8; 32],
    /// The environment that it made.
    pub environment_id: EnvironmentId,
    /// The environment's task.
    pub task_id: TaskId,
    /// What the caller was told; `None` while the create is under way, or when the
    /// process ended before it could be kept.
    pub answer: Option<StoredAnswer>,
}

/// An answer to a request, kept for its repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    /// HTTP status.
    pub status: u16,
    /// Body, JSON.
    pub body: String,
}

/// A key with the answer that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Whose key it is.
    pub tenant: String,
    /// The key.
    pub key: IdempotentKey,
    /// What its repeats are told.
    pub answer: StoredAnswer,
}

/// What became of an insert.
#[expect(
    clippy::large_enum_variant,
    reason = "made once per create and taken apart at once"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted {
    /// It is stored, charged and being created by this replica.
    Created(Environment),
    /// The task, or the id made from it, belongs to a tracked environment.
    TaskAssigned(EnvironmentId),
    /// No candidate fits any more.
    NoCapacity,
    /// The idempotency key is in use.
    KeyTaken,
}

/// A create that failed before there was a record: placement found no host.
#[derive(Debug, Clone)]
pub struct FailedCreate {
    /// The id that it would have had.
    pub id: EnvironmentId,
    /// Its task.
    pub task_id: TaskId,
    /// Whose it is.
    pub tenant: String,
    /// Why, redacted.
    pub error: String,
    /// Entries to write with it.
    pub audit: Vec<AuditEntry>,
}

/// What became of a guarded write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guarded<T> {
    /// It is committed; this is the record now.
    Updated(T),
    /// The record has changed since it was read: read it again and decide anew.
    Stale,
    /// There is no such record any more.
    Missing,
    /// Somebody else's operation is under way.
    Busy(Operation),
}

/// Two environments of which one took the other's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedEnvironment {
    /// Who had it: `destroying`, by this replica.
    pub source: Environment,
    /// Who has it: `running`.
    pub target: Environment,
}

/// What to do to the task along with its environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TaskChange {
    /// Nothing.
    #[default]
    Keep,
    /// Its environment runs.
    Running,
    /// It was reported as done; it leaves the environment.
    Completed,
    /// It failed for this reason; it leaves the environment.
    Failed(String),
}

/// What to do to the operation lease of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OperationChange {
    /// Nothing.
    #[default]
    Keep,
    /// Take it for this replica, for at most this long; [`Guarded::Busy`] while
    /// another live operation has it.
    Begin(OperationKind, Duration),
    /// Take it from whoever has it. Their next write will be stale.
    Seize(OperationKind, Duration),
    /// Give it back.
    End,
}

/// New values for an environment; `None` leaves a value as it is.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// `host:port` of the guest agent.
    pub url: Option<String>,
    /// Published ports.
    pub endpoints: Option<Vec<Endpoint>>,
    /// The boot of its guest that was set up.
    pub boot_id: Option<String>,
    /// Release of the agent in its guest.
    pub guest_version: Option<String>,
    /// Last failure text; empty clears it.
    pub error: Option<String>,
    /// Token of its guest agent; kept only if the store has a key.
    pub guest_token: Option<Redacted<String>>,
    /// What happens to its task; nothing once the task has left it.
    pub task: TaskChange,
    /// What happens to its operation lease.
    pub operation: OperationChange,
    /// Entries to write with it.
    pub audit: Vec<AuditEntry>,
}

/// The end of an environment.
#[derive(Debug, Clone, Default)]
pub struct Removal {
    /// Text of the terminal event; empty when there is nothing to tell.
    pub error: String,
    /// What happens to its task.
    pub task: TaskChange,
    /// Entries to write with it.
    pub audit: Vec<AuditEntry>,
}

/// Which environments to list; empty matches all.
#[derive(Debug, Clone, Default)]
pub struct EnvironmentFilter {
    /// Of this task.
    pub task_id: Option<TaskId>,
    /// In this state.
    pub state: Option<State>,
    /// On this host.
    pub host_id: Option<HostId>,
    /// Made by this tenant.
    pub tenant: Option<String>,
}

/// Where a page starts (after this id) and how long it may be.
#[derive(Debug, Clone)]
pub struct Page<Id> {
    /// Last id of the page before; `None` for the first page.
    pub after: Option<Id>,
    /// Most entries to return.
    pub limit: u32,
}

/// One page, in order of ids.
#[derive(Debug, Clone)]
pub struct Listing<T, Id> {
    /// The entries.
    pub items: Vec<T>,
    /// Where the next page starts; `None` on the last one.
    pub next: Option<Id>,
}

impl<T, Id> Listing<T, Id> {
    /// A page out of up to `limit` + 1 entries: the one too many says that there
    /// is a next page.
    pub(crate) fn cut(mut items: Vec<T>, limit: u32, id: impl Fn(&T) -> Id) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(id) } else { None };
        Self { items, next }
    }
}

/// A host as an operator registers it, probed and merged.
#[derive(Debug, Clone)]
pub struct HostRegistration {
    /// Its id.
    pub id: HostId,
    /// Base URL of its agent.
    pub url: String,
    /// The agent's token; empty for an agent without one.
    pub token: Redacted<String>,
    /// Region; may be empty.
    pub region: String,
    /// What drives its VMs.
    pub backend: Backend,
    /// Declared labels.
    pub labels: Labels,
    /// What it offers.
    pub capacity: Capacity,
    /// What of it was declared; zero and empty mean "take what the agent says".
    pub declared: Capacity,
    /// What the first contact with its agent found.
    pub check: AgentCheck,
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// It is stored; `last_seen`, `state`, `created_at` and what is allocated
    /// follow the rules of re-registration.
    Stored(Box<fuse_model::Host>),
    /// The backend differs and this many environments are assigned to the host.
    BackendInUse(u64),
}

/// What became of a host's removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostRemoval {
    /// It is gone.
    Removed,
    /// There was none.
    Missing,
    /// Environments are assigned to it.
    Assigned {
        /// The lowest of their ids.
        lowest: EnvironmentId,
        /// How many they are.
        count: u64,
    },
}

/// The token of a host's agent, as far as it can be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentToken {
    /// The token; empty for an agent without one.
    Known(Redacted<String>),
    /// Stored under a key that this process does not have.
    Undecryptable,
}

/// A named lease that this replica holds; `epoch` grows with each change of holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub name: String,
    /// Which tenure this is.
    pub epoch: i64,
}

/// An API key as stored; the key itself is known to its holder only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id, which is the tenant of its requests.
    pub id: ApiKeyId,
    /// SHA-256 of the raw key.
    pub hash: [u8; 32],
    /// The caller's label.
    pub label: String,
    /// Extra rights.
    pub scopes: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was used last, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// Something that was given up on.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// What was given up: `orphan_destroy`, `stuck_task` or `idle_timeout`.
    pub kind: String,
    /// On what: the id of a VM.
    pub entity_id: String,
    /// The task that it had; empty for an orphan.
    pub task_id: String,
    /// Why.
    pub reason: String,
    /// Failed attempts.
    pub retry_count: u32,
    /// Details.
    pub payload: Map<String, Value>,
}

/// A dead letter as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetterRecord {
    /// What it says.
    pub letter: DeadLetter,
    /// When it was written first.
    pub first_seen_at: Timestamp,
    /// When it was written last.
    pub last_seen_at: Timestamp,
}

/// Which audit entries to list; empty matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// About this kind of thing: `vm`, `task`, `host`, `api`.
    pub entity_type: Option<String>,
    /// About this one.
    pub entity_id: Option<String>,
    /// Of this type, such as `vm.running`.
    pub kind: Option<String>,
    /// Not before.
    pub since: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
}

/// An audit entry as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRecord {
    /// Its place in the log.
    pub place: i64,
    /// What it is about.
    pub entity_type: String,
    /// Which one.
    pub entity_id: String,
    /// What happened.
    pub kind: String,
    /// Details.
    pub payload: Map<String, Value>,
    /// When.
    pub at: Timestamp,
}
