//! Reading hosts, taking them out of placement and back, removing them.

use fuse_model::{AuditEntry, AuditKind, Host, HostId, HostState};
use fuse_store::{HostRemoval, Listing, Page};

use crate::{Control, Error, error::Missing};

impl Control {
    /// One host.
    ///
    /// # Errors
    /// It is not registered, or the store fails.
    pub async fn host_get(&self, id: &HostId) -> Result<Host, Error> {
        let found = self.inner.store.host_get(id).await?;
        let host = found.ok_or_else(|| Missing::Host(id.clone()))?;
        Ok(self.with_key_trouble(host))
    }

    /// A page of hosts, by id.
    ///
    /// # Errors
    /// The store fails.
    pub async fn host_list(&self, page: &Page<HostId>) -> Result<Listing<Host, HostId>, Error> {
        let listing = self.inner.store.host_list(page).await?;
        let hosts = listing.items.into_iter();
        Ok(Listing {
            items: hosts.map(|host| self.with_key_trouble(host)).collect(),
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

    /// Takes a host out of placement for good; nothing is moved or ended, so it is empty
    /// once its environments have ended.
    ///
    /// # Errors
    /// It is not registered, or the store fails.
    pub async fn host_drain(&self, id: &HostId) -> Result<(), Error> {
        self.host_set_state(id, HostState::Draining, AuditKind::HostDraining)
            .await
    }

    /// Puts a host back into placement, also one that was being drained or that boots
    /// had failed on.
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
                self.inner.fleet.forget();
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
                self.inner.fleet.forget();
                tracing::info!(host_id = %id, state = state.as_str(), "host state set");
                Ok(())
            }
            None => Err(Missing::Host(id.clone()).into()),
        }
    }
}
