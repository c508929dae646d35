//! The state of a fleet in SQL: the only truth, and the only crate that knows SQL.
//!
//! One code path serves PostgreSQL (any number of orchestrators) and SQLite (a
//! file or memory, one process). Callers see use-case-level methods on
//! [`Store`], each of which is one transaction: the row, its event and its
//! audit entries are committed together, before anybody is told.
//!
//! All writes go through one queue (`writer`), which is what makes them fast
//! and gives events their order; reads use a small pool (`pool`). `sql` lets one
//! text run on both engines.

mod api_key;
mod audit;
mod clock;
mod connect;
mod core;
mod dead_letter;
mod effects;
mod environment;
mod error;
mod event;
mod host;
mod idempotency;
mod inventory;
mod keys;
mod lease;
mod listen;
mod migrate;
mod multi_row;
mod pool;
mod presence;
mod pulse;
mod snapshot;
mod sql;
mod store;
mod task;
mod tx;
mod types;
mod vault;
mod writer;

pub use error::{OpenError, StoreError};
pub use event::EventWatch;
pub use host::Breaker;
pub use inventory::Inventory;
pub use keys::{KeyReport, Rekeyed};
pub use snapshot::{
    CachedLayer, Holder, SnapshotChange, SnapshotFilter, SnapshotPlace, SnapshotUsage, later,
};
pub use store::Store;
pub use types::{
    AgentToken, ApiKey, AuditFilter, AuditRecord, Change, DeadLetter, DeadLetterRecord, Engine,
    EnvironmentFilter, FailedCreate, Guarded, HostRegistration, HostRemoval, IdempotencyRecord,
    IdempotentKey, Inserted, KeptAnswer, Lease, Listing, MovedEnvironment, NewEnvironment,
    OperationChange, Page, Registered, Removal, SecretMap, StoredAnswer, TaskChange,
};
pub use vault::{Vault, VaultError};
