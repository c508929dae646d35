//! Reading what was written for people: the audit log and the dead letters.

use fuse_store::{AuditFilter, AuditRecord, DeadLetter, DeadLetterRecord, Listing, Page};

use crate::{Control, Error};

impl Control {
    /// A page of the audit log, newest first.
    ///
    /// # Errors
    /// The store fails.
    pub async fn audit_list(
        &self,
        filter: &AuditFilter,
        page: &Page<i64>,
    ) -> Result<Listing<AuditRecord, i64>, Error> {
        Ok(self.inner.store.audit_list(filter, page).await?)
    }

    /// A page of dead letters, by kind and entity.
    ///
    /// # Errors
    /// The store fails.
    pub async fn dead_letter_list(
        &self,
        page: &Page<(String, String)>,
    ) -> Result<Listing<DeadLetterRecord, (String, String)>, Error> {
        Ok(self.inner.store.dead_letter_list(page).await?)
    }

    /// Notes that something was given up on. It is for people only, so a failed write is
    /// logged and no more.
    pub(crate) async fn give_up_on(&self, letter: DeadLetter) {
        tracing::error!(
            kind = letter.kind,
            vm_id = letter.entity_id,
            reason = letter.reason,
            "dead letter"
        );
        if let Err(e) = self.inner.store.dead_letter_put(letter).await {
            tracing::warn!(error = %crate::error::chain(&e), "cannot write a dead letter");
        }
    }
}
