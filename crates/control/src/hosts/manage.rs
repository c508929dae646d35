//! Reading hosts, taking them out of placement and back, removing them.

use fuse_model::{AuditEntry, AuditKind, Host, HostId, HostState};
use fuse_store::{HostRemoval, Listing, Page};

use crate::{Control, Error, error::Missing, reachability::AgentCheck};

/// A host and whether its agent answers.
#[derive(Debug, Clone)]
pub struct HostStatus {
    /// As stored.
    pub host: Host,
    /// The last contact; `None` before the first one of this process.
    pub agent: Option<AgentCheck>,
}

impl Control {
    /// One host.
    ///
    /// # Errors
    /// It is not registered, or the store fails.
    pub async fn host_get(&self, id: &HostId) -> Result<HostStatus, Error> {
        let found = self.inner.store.host_get(id).await?;
        let host = found.ok_or_else(|| Missing::Host(id.clone()))?;
        Ok(self.host_status(host))
    }

    /// A page of hosts, by id.
    ///
    /// # Errors
    /// The store fails.
    pub async fn host_list(
        &self,
        page: &Page<HostId>,
    ) -> Result<Listing<HostStatus, HostId>, Error> {
        let listing = self.inner.store.host_list(page).await?;
        let items = listing
            .items
            .into_iter()
            .map(|host| self.host_status(host))
            .collect();
        Ok(Listing {
            items,
            next: listing.next,
        })
    }

    /// Takes a host out of placement; what runs there stays.
    ///
    /// # Errors
    /// It is not registered, or the store fails.
    pub async fn host_cordon(&self, id: &HostId) -> Result<(), Error> {
        self.host_set_state(id, HostState::Cordoned, AuditKind::HostCordoned)
            .await
    }

    /// Puts a host back into placement, also one that was being drained.
    ///
    /// # Errors
    /// It is not registered, or the store fails.
    pub async fn host_uncordon(&self, id: &HostId) -> Result<(), Error> {
        self.host_set_state(id, HostState::Active, AuditKind::HostUncordoned)
            .await
    }

    /// Removes a host that no environment is assigned to.
    ///
    /// # Errors
    /// It is not registered, environments are assigned to it, or the store fails.
    pub async fn host_remove(&self, id: &HostId) -> Result<(), Error> {
        let audit = vec![AuditEntry::new(AuditKind::HostRemoved, id.as_str())];
        match self.inner.store.host_remove(id, audit).await? {
            HostRemoval::Removed => {
                self.inner.providers.forget(id);
                self.inner.reachability.forget(id);
                tracing::info!(host_id = %id, "host removed");
                Ok(())
            }
            HostRemoval::Missing => Err(Missing::Host(id.clone()).into()),
            HostRemoval::Assigned { lowest, count } => Err(Error::HostInUse {
                host: id.clone(),
                vm: lowest,
                count,
            }),
        }
    }

    async fn host_set_state(
        &self,
        id: &HostId,
        state: HostState,
        kind: AuditKind,
    ) -> Result<(), Error> {
        let audit = vec![AuditEntry::new(kind, id.as_str())];
        match self.inner.store.host_set_state(id, state, audit).await? {
            Some(_) => {
                tracing::info!(host_id = %id, state = state.as_str(), "host state set");
                Ok(())
            }
            None => Err(Missing::Host(id.clone()).into()),
        }
    }

    /// A host with its last contact.
    #[must_use]
    pub fn host_status(&self, host: Host) -> HostStatus {
        let agent = self.inner.reachability.get(&host.id);
        HostStatus { host, agent }
    }
}
