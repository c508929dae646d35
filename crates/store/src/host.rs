//! Hosts.
use fuse_model::{AuditEntry, Host, HostId, HostState};

use crate::{
    AgentToken, HostRegistration, HostRemoval, Listing, Page, Registered, Store, StoreError,
};

impl Store {
    /// Registers a host, or registers it anew: state, `created_at` and what its
    /// environments take are kept.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_upsert(
        &self,
        _host: HostRegistration,
        _audit: Vec<AuditEntry>,
    ) -> Result<Registered, StoreError> {
        Err(StoreError::Closed)
    }

    /// One host.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_get(&self, _id: &HostId) -> Result<Option<Host>, StoreError> {
        Err(StoreError::Closed)
    }

    /// A page of hosts by id.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_list(
        &self,
        _page: &Page<HostId>,
    ) -> Result<Listing<Host, HostId>, StoreError> {
        Err(StoreError::Closed)
    }

    /// All hosts, by id: what placement chooses from.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_list_all(&self) -> Result<Vec<Host>, StoreError> {
        Err(StoreError::Closed)
    }

    /// The token of a host's agent; `None` for an unknown host.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_token(&self, _id: &HostId) -> Result<Option<AgentToken>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Sets whether a host takes placements; `None` for an unknown host.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_set_state(
        &self,
        _id: &HostId,
        _state: HostState,
        _audit: Vec<AuditEntry>,
    ) -> Result<Option<Host>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Removes a host that no environment is assigned to.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_remove(
        &self,
        _id: &HostId,
        _audit: Vec<AuditEntry>,
    ) -> Result<HostRemoval, StoreError> {
        Err(StoreError::Closed)
    }
}
