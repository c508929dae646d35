//! Leases.
use std::time::Duration;

use crate::{Lease, Store, StoreError};

impl Store {
    /// Takes or renews a named lease for `ttl`; `None` while a live replica has it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn lease_acquire(
        &self,
        _name: &str,
        _ttl: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Gives a lease back, if it is still this replica's.
    ///
    /// # Errors
    /// The database fails.
    pub async fn lease_release(&self, _lease: &Lease) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
}
