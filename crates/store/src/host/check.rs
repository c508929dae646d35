//! What checks of host agents found.

use fuse_model::{AgentCheck, AuditEntry, HostId};

use crate::multi_row::MultiRow;
use crate::sql::binds;
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Store, StoreError};

/// `changed_at` moves only when the agent starts or stops answering. Facts that a
/// failed check does not know stay as they were.
const STORE: MultiRow = MultiRow {
    step: "store checks of hosts",
    before: "INSERT INTO host_checks (host_id, checked_at, changed_at, reachable, error, \
         version, guests, disk_free_gb) SELECT r.column1, r.column2, r.column2, r.column3, \
         r.column4, r.column5, r.column6, r.column7 FROM (VALUES ",
    after: ") AS r WHERE r.column1 IS NOT NULL \
         AND EXISTS (SELECT 1 FROM hosts WHERE hosts.id = r.column1) \
         ON CONFLICT (host_id) DO UPDATE SET checked_at = excluded.checked_at, \
         changed_at = CASE WHEN host_checks.reachable = excluded.reachable \
         THEN host_checks.changed_at ELSE excluded.checked_at END, \
         reachable = excluded.reachable, error = excluded.error, \
         version = CASE WHEN excluded.reachable = 1 THEN excluded.version \
         ELSE host_checks.version END, \
         guests = COALESCE(excluded.guests, host_checks.guests), \
         disk_free_gb = COALESCE(excluded.disk_free_gb, host_checks.disk_free_gb)",
};

impl Store {
    /// Stores what checks found. Hosts that are gone are passed over.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_checks_store(
        &self,
        checks: Vec<(HostId, AgentCheck)>,
        audit: Vec<AuditEntry>,
    ) -> Result<(), StoreError> {
        self.write(StoreChecks { checks, audit }).await
    }
}

struct StoreChecks {
    checks: Vec<(HostId, AgentCheck)>,
    audit: Vec<AuditEntry>,
}

impl Write for StoreChecks {
    type Out = ();
    const ENTITY: &'static str = "host";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        store_in_tx(tx, self.checks.clone()).await?;
        tx.effects.audit(&self.audit);
        Ok(Applied::Keep(()))
    }
}

pub(super) async fn store_in_tx(
    tx: &mut Tx<'_>,
    checks: Vec<(HostId, AgentCheck)>,
) -> Result<(), StoreError> {
    let rows = checks.into_iter().map(|(id, check)| {
        binds![
            id.as_str(),
            check.checked_at,
            i64::from(check.is_reachable()),
            check.error.unwrap_or_default(),
            check.version,
            check.guests,
            check.disk_free_gb
        ]
    });
    STORE.run(tx, rows.collect()).await.map(drop)
}
