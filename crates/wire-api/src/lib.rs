//! The orchestrator's HTTP contract: request and response bodies, error codes,
//! validation, page cursors.
//!
//! Invariants:
//! - Field names, omission rules and message texts are wire contract; changing one
//!   is an API change.
//! - Nothing here does I/O. Validation is pure: it looks at the request alone, in
//!   the order in which the contract lists the checks, and the first failure wins.
//! - Unset request fields and empty response fields are absent, never `null`;
//!   a `null` that a caller sends means "unset".
//!
//! Used by the orchestrator (server side) and by `fuse-client` (caller side).

mod api_key;
mod audit;
mod computer;
mod create;
mod environment;
mod error;
mod event;
mod exec;
mod files;
mod grammar;
mod host;
mod json;
mod manifest;
mod page;
mod placement;
mod service;
mod session;
mod snapshot;
mod spec;
mod task;
mod workload;

pub use api_key::{ApiKey, ApiKeyList, CreateApiKey, CreatedApiKey, Scope};
pub use audit::{AuditEvent, AuditEventList, DeadLetter, DeadLetterList};
pub use computer::ComputerAction;
pub use create::{CheckedCreate, CreateEnvironment, StartupSteps};
pub use environment::{
    EgressHealth, EgressStatus, Endpoint, Environment, EnvironmentList, Health, ListEnvironments,
};
pub use error::{ErrorBody, ErrorCode, ErrorEnvelope, Violation};
pub use event::{Event, KIND_SERVICE, KIND_STATE, KIND_STEP};
pub use exec::{ExecCommand, ExecFrame, ExecRequest, ExecResponse, Output};
pub use files::{FileBody, GuestFile, MAX_FILES_BYTES};
pub use grammar::{
    is_dns_label, is_idempotency_key, is_label_part, is_request_id, normalize_arch,
    normalize_mig_profile,
};
pub use host::{
    AgentStatus, Allocated, Capacity, GpuDevice, Host, HostList, MigInstance, RegisterHost,
};
pub use json::{DecodeError, decode};
pub use manifest::{EnvSource, Machine, Manifest, Service, ServiceHealthcheck};
pub use page::{DEFAULT_PAGE, IdCursor, MAX_PAGE, PageQuery, page_limit};
pub use placement::{ExplainPlacement, PlacementExplanation, PlacementHost};
pub use service::{HealthStatus, Readiness, VersionInfo};
pub use session::{Login, SESSION_COOKIE};
pub use snapshot::{
    CreateSnapshot, ForkEnvironment, ListSnapshots, MigrateEnvironment, ResolvedSnapshot, Snapshot,
    SnapshotCursor, SnapshotExport, SnapshotList,
};
pub use spec::Spec;
pub use task::{LogQuery, StepTiming, Task, TaskFailure, TaskOutput, TaskPlacement};
pub use workload::{Desktop, Egress, Expose, Healthcheck, HttpProbe};

/// Body limit of routes that carry an environment, a command or an action (bytes).
pub const MAX_BODY_LARGE: usize = 1_048_576;
/// Body limit of `POST /login` (bytes).
pub const MAX_BODY_LOGIN: usize = 4096;
/// Body limit of every other JSON route (bytes).
pub const MAX_BODY_SMALL: usize = 65_536;
