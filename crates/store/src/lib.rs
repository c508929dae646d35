//! The state of a fleet in SQL: the only truth, and the only crate that knows SQL.
//!
//! One code path serves PostgreSQL (any number of orchestrators) and SQLite (a
//! file or memory, one process). Callers see use-case-level methods on
//! [`Store`], each of which is one transaction: the row, its event and its
//! audit entries are committed together, before anybody is told.
//!
//! How writes get there, and why, is described in [`store`] and `writer`.

mod api_key;
mod audit;
mod environment;
mod error;
mod event;
mod host;
mod lease;
mod store;
mod task;
mod types;
mod vault;

pub use error::{OpenError, StoreError};
pub use event::EventWatch;
pub use store::Store;
pub use types::{
    AgentToken, ApiKey, Change, Engine, EnvironmentFilter, FailedCreate, Guarded, HostRegistration,
    HostRemoval, Inserted, Lease, Listing, NewEnvironment, OperationChange, Page, Registered,
    Removal, SecretMap, TaskChange,
};
pub use vault::{Vault, VaultError};
