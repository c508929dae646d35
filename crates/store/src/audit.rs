//! The audit log.
use fuse_model::AuditEntry;

use crate::{Store, StoreError};

impl Store {
    /// Writes entries that belong to no other write, such as a refused login.
    ///
    /// # Errors
    /// The database fails.
    pub async fn audit_insert(&self, _entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
}
