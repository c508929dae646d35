//! The domain types of Fuse: ids, specs, states and their transitions, hosts,
//! tasks, events and error kinds.
//!
//! Nothing here does I/O or knows async; every other crate may depend on it.
//! Wire shapes live in the `wire-*` crates and rows in `store`; they convert
//! from and to these types at the edge.

mod audit;
mod environment;
mod error;
mod event;
mod gpu;
mod health;
mod host;
mod ids;
mod names;
mod operation;
mod redacted;
mod snapshot;
mod spec;
mod state;
mod task;
mod time;

pub use audit::{AuditEntity, AuditEntry, AuditKind};
pub use environment::{Endpoint, Environment, Version};
pub use error::{ErrorKind, UnknownName};
pub use event::{EnvironmentEvent, GuestReport, ServiceReport, ServiceStatus, StepReport};
pub use gpu::{BoundGpus, GpuDevice, MigInstance};
pub use health::{Health, HealthState, Probe};
pub use host::{AgentCheck, Allocated, Backend, Capacity, Evict, FailedBoots, Host, HostState};
pub use ids::{
    ApiKeyId, EnvironmentId, EventId, FleetId, HostId, ParseEventIdError, ReplicaId, SnapshotId,
    TaskId,
};
pub use operation::{Operation, OperationKind};
pub use redacted::Redacted;
pub use snapshot::{Snapshot, SnapshotExport, SnapshotKind, SnapshotState};
pub use spec::{Arch, EnvironmentSpec, Labels, Resources};
pub use state::{IllegalTransition, State, Trigger};
pub use task::{LogTail, Task, TaskFailure, TaskLog, TaskOutput, TaskStatus};
pub use time::{now, to_micros, truncate_to_micros};
