//! Boots that fail in a row, and the quarantine that follows.

use std::time::Duration;

use fuse_model::{AuditEntry, AuditKind, HostId, to_micros};

use crate::sql::binds;
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Store, StoreError};

/// When boots that fail put a host into quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    /// Failed boots in a row.
    pub after: u32,
    /// Time until a boot is tried there again.
    pub retry_after: Duration,
}

impl Store {
    /// Notes a failed boot. Answers whether it put the host into quarantine.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_boot_failed(
        &self,
        id: &HostId,
        error: String,
        breaker: Breaker,
    ) -> Result<bool, StoreError> {
        self.write(BootFailed {
            id: id.clone(),
            error,
            breaker,
        })
        .await
    }

    /// Notes that a boot tried on a quarantined host has failed too.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_retry_failed(
        &self,
        id: &HostId,
        error: String,
        retry_after: Duration,
    ) -> Result<(), StoreError> {
        self.write(RetryFailed {
            id: id.clone(),
            error,
            retry_after,
        })
        .await
    }

    /// Notes that a boot worked: earlier failures are forgotten and the host is out of
    /// quarantine. Answers whether it was in.
    ///
    /// # Errors
    /// The database fails.
    pub async fn host_boot_worked(&self, id: &HostId) -> Result<bool, StoreError> {
        // Nearly always there is nothing to forget, and reading is cheap.
        let sql = "SELECT count FROM host_failed_boots WHERE host_id = $1";
        let rows = self
            .read("read failed boots", sql, binds![id.as_str()])
            .await?;
        if rows.is_empty() {
            return Ok(false);
        }
        self.write(BootWorked { id: id.clone() }).await
    }
}

struct BootFailed {
    id: HostId,
    error: String,
    breaker: Breaker,
}

impl Write for BootFailed {
    type Out = bool;
    const ENTITY: &'static str = "host";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<bool>, StoreError> {
        let sql = "INSERT INTO host_failed_boots (host_id, count, last_error, retries) \
             SELECT id, 1, $2, 0 FROM hosts WHERE id = $1 \
             ON CONFLICT (host_id) DO UPDATE SET count = host_failed_boots.count + 1, \
             last_error = excluded.last_error RETURNING count";
        let values = binds![self.id.as_str(), self.error.as_str()];
        let rows = tx.fetch("note a failed boot", sql, values).await?;
        let Some(row) = rows.first() else {
            return Ok(Applied::Keep(false));
        };
        let count = row.columns("host_failed_boots").int("count")?;
        if count < i64::from(self.breaker.after) {
            return Ok(Applied::Keep(false));
        }
        let sql = "UPDATE host_failed_boots SET quarantined_at = $2, retry_at = $3 \
             WHERE host_id = $1 AND quarantined_at IS NULL";
        let retry_at = tx.now.as_microsecond() + to_micros(self.breaker.retry_after);
        let values = binds![self.id.as_str(), tx.now, retry_at];
        let newly = tx.execute("quarantine a host", sql, values).await? > 0;
        if newly {
            let entry = AuditEntry::new(AuditKind::HostQuarantined, self.id.as_str())
                .with("failed_boots", count)
                .with("error", self.error.as_str());
            tx.effects.audit(&[entry]);
        }
        Ok(Applied::Keep(newly))
    }
}

struct RetryFailed {
    id: HostId,
    error: String,
    retry_after: Duration,
}

impl Write for RetryFailed {
    type Out = ();
    const ENTITY: &'static str = "host";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "UPDATE host_failed_boots SET count = count + 1, retries = retries + 1, \
             last_error = $2, retry_at = $3 WHERE host_id = $1";
        let retry_at = tx.now.as_microsecond() + to_micros(self.retry_after);
        let values = binds![self.id.as_str(), self.error.as_str(), retry_at];
        tx.execute("note a failed boot", sql, values).await?;
        Ok(Applied::Keep(()))
    }
}

struct BootWorked {
    id: HostId,
}

impl Write for BootWorked {
    type Out = bool;
    const ENTITY: &'static str = "host";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<bool>, StoreError> {
        let readmitted = forget_in_tx(tx, &self.id).await?;
        Ok(Applied::Keep(readmitted))
    }
}

/// Forgets failed boots; answers whether the host was in quarantine for them.
pub(super) async fn forget_in_tx(tx: &mut Tx<'_>, id: &HostId) -> Result<bool, StoreError> {
    let sql = "DELETE FROM host_failed_boots WHERE host_id = $1 RETURNING quarantined_at";
    let rows = tx
        .fetch("forget failed boots", sql, binds![id.as_str()])
        .await?;
    let Some(row) = rows.first() else {
        return Ok(false);
    };
    let quarantined = row
        .columns("host_failed_boots")
        .opt_time("quarantined_at")?
        .is_some();
    if quarantined {
        tx.effects
            .audit(&[AuditEntry::new(AuditKind::HostReadmitted, id.as_str())]);
    }
    Ok(quarantined)
}
