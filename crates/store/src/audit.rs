//! The audit log. Most entries are written along with what they tell.

use fuse_model::AuditEntry;

use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Store, StoreError};

impl Store {
    /// Writes entries that belong to no other write, such as a refused login.
    ///
    /// # Errors
    /// The database fails.
    pub async fn audit_insert(&self, entries: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.write(Insert(entries)).await
    }
}

struct Insert(Vec<AuditEntry>);

impl Write for Insert {
    type Out = ();

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        tx.effects.audit(&self.0);
        Ok(Applied::Keep(()))
    }
}
