//! Reading hosts, taking them out of placement and back, removing them.

use fuse_model::{AuditEntry, AuditKind, Evict, Host, HostId, HostState};
use fuse_store::{HostRemoval, Listing, Page};

use crate::{
    Control, Error,
    create::{SEEDED, cannot_migrate},
    error::Missing,
};

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
        let entry = AuditEntry::new(AuditKind::HostCordoned, id.as_str());
        self.host_set_state(id, (HostState::Cordoned, Evict::None), entry)
            .await
    }

    /// Takes a host out of placement for good; the reconcile loop does with its
    /// environments what `evict` says, and destroys none.
    ///
    /// # Errors
    /// It is not registered, its backend cannot move anything, or the store fails.
    pub async fn host_drain(&self, id: &HostId, evict: Evict) -> Result<(), Error> {
        if evict == Evict::Migrate && self.host_get(id).await?.backend != SEEDED {
            return Err(cannot_migrate());
        }
        let entry = AuditEntry::new(AuditKind::HostDraining, id.as_str());
        let entry = entry.with("evict", evict.as_str());
        self.host_set_state(id, (HostState::Draining, evict), entry)
            .await?;
        self.reconcile_now();
        Ok(())
    }

    /// Puts a host back into placement, also one that was being drained or that boots
    /// had failed on.
    ///
    /// # Errors
    /// It is not registered, or the store fails.
    pub async fn host_uncordon(&self, id: &HostId) -> Result<(), Error> {
        let entry = AuditEntry::new(AuditKind::HostUncordoned, id.as_str());
        self.host_set_state(id, (HostState::Active, Evict::None), entry)
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
        (state, evict): (HostState, Evict),
        entry: AuditEntry,
    ) -> Result<(), Error> {
        let store = &self.inner.store;
        match store
            .host_set_state(id, (state, evict), vec![entry])
            .await?
        {
            Some(_) => {
                self.inner.fleet.forget();
                tracing::info!(host_id = %id, state = state.as_str(), "host state set");
                Ok(())
            }
            None => Err(Missing::Host(id.clone()).into()),
        }
    }
}
