//! The lease that whoever works on an environment holds on its row.

use std::time::Duration;

use fuse_model::{EnvironmentId, OperationKind, to_micros};
use jiff::Timestamp;

use crate::sql::binds;
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Store, StoreError};

impl Store {
    /// Extends this replica's operation on an environment to `ttl` from now.
    /// `false` when it is no longer this replica's.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_operation_renew(
        &self,
        id: &EnvironmentId,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let renew = Renew {
            id: id.clone(),
            ttl,
        };
        self.write(renew).await
    }

    /// Gives up an operation of this replica whose outcome could not be stored, so that
    /// it counts as interrupted now and not when it expires. One that began after
    /// `began_before` is another one, and left alone. Answers whether there was one.
    ///
    /// # Errors
    /// The database fails.
    pub async fn environment_operation_abandon(
        &self,
        id: &EnvironmentId,
        kind: OperationKind,
        began_before: Timestamp,
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        let abandon = Abandon {
            id: id.clone(),
            kind,
            latest: expiry(began_before, ttl),
        };
        self.write(abandon).await
    }
}

struct Renew {
    id: EnvironmentId,
    ttl: Duration,
}

impl Write for Renew {
    type Out = bool;
    const ENTITY: &'static str = "vm";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<bool>, StoreError> {
        let sql = "UPDATE environments SET op_expires_at = $3 WHERE id = $1 AND op_owner = $2";
        let values = binds![
            self.id.as_str(),
            tx.replica.as_str(),
            expiry(tx.now, self.ttl)
        ];
        let changed = tx.execute("renew an operation", sql, values).await?;
        Ok(Applied::Keep(changed > 0))
    }
}

struct Abandon {
    id: EnvironmentId,
    kind: OperationKind,
    /// Expiry of the youngest operation that may be meant.
    latest: i64,
}

impl Write for Abandon {
    type Out = bool;
    const ENTITY: &'static str = "vm";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<bool>, StoreError> {
        let sql = "UPDATE environments SET op_expires_at = 0 WHERE id = $1 AND op_owner = $2 \
             AND op_kind = $3 AND op_expires_at <= $4 AND op_expires_at > 0";
        let values = binds![
            self.id.as_str(),
            tx.replica.as_str(),
            self.kind.as_str(),
            self.latest
        ];
        let changed = tx.execute("abandon an operation", sql, values).await?;
        Ok(Applied::Keep(changed > 0))
    }
}

/// When a lease ends that begins now.
pub(super) fn expiry(now: Timestamp, ttl: Duration) -> i64 {
    now.as_microsecond().saturating_add(to_micros(ttl))
}
