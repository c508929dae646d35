//! What a fleet cannot do without, read once: hosts, environments, snapshots, API keys, secrets.

use crate::types::{EnvironmentFilter, Listing, Page};
use crate::{KeyReport, SnapshotFilter, Store, StoreError};

/// Rows read at a time.
const PAGE: u32 = 500;

/// What a store holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Hosts.
    pub hosts: usize,
    /// Environments.
    pub environments: usize,
    /// Snapshots.
    pub snapshots: usize,
    /// API keys, revoked ones included.
    pub api_keys: usize,
    /// Which secrets open.
    pub secrets: KeyReport,
}

impl Store {
    /// Reads every host, environment, snapshot and API key, and opens every secret.
    ///
    /// # Errors
    /// The database fails, or a row cannot be understood.
    pub async fn inventory(&self) -> Result<Inventory, StoreError> {
        let environments = EnvironmentFilter::default();
        let snapshots = SnapshotFilter::default();
        Ok(Inventory {
            hosts: self.host_list_all().await?.len(),
            environments: count(async |page| self.environment_list(&environments, &page).await)
                .await?,
            snapshots: count(async |page| self.snapshot_list(&snapshots, &page).await).await?,
            api_keys: self.api_key_list().await?.len(),
            secrets: self.key_report().await?,
        })
    }
}

async fn count<T, Id>(
    list: impl AsyncFn(Page<Id>) -> Result<Listing<T, Id>, StoreError>,
) -> Result<usize, StoreError> {
    let mut found = 0;
    let mut after = None;
    loop {
        let listing = list(Page { after, limit: PAGE }).await?;
        found += listing.items.len();
        after = listing.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}
