//! The handle of an open store.

use fuse_model::{FleetId, ReplicaId};
use jiff::Timestamp;

use crate::{Engine, OpenError, StoreError, Vault};

/// An open store; clones share it.
#[derive(Debug, Clone)]
pub struct Store {}

impl Store {
    /// Opens the store that `url` names (`postgres://…`, `sqlite://path`, `None`
    /// for one in memory), brings its schema up to date and joins the fleet.
    ///
    /// # Errors
    /// A bad URL, no database, a file in use by another process, or a failed
    /// migration; the text says what to do.
    pub async fn open(_url: Option<&str>, _vault: Vault) -> Result<Self, OpenError> {
        Err(OpenError::Url)
    }

    /// Where the state lives.
    pub fn engine(&self) -> Engine {
        Engine::Memory
    }

    /// The fleet's identity: the owner tag of every VM.
    pub fn fleet_id(&self) -> &FleetId {
        unreachable!()
    }

    /// This process's identity among the orchestrators of the fleet.
    pub fn replica_id(&self) -> &ReplicaId {
        unreachable!()
    }

    /// The keys in use.
    pub fn vault(&self) -> &Vault {
        unreachable!()
    }

    /// The fleet's clock: the database's on Postgres, so that replicas agree.
    pub fn now(&self) -> Timestamp {
        fuse_model::now()
    }

    /// Whether the database answers a read.
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// Finishes the writes under way, gives up this replica's leases and closes
    /// all connections. Later calls fail with [`StoreError::Closed`].
    pub async fn close(&self) {}
}
