//! Named leases: work that one replica of the fleet does at a time.

use std::time::Duration;

use fuse_model::to_micros;

use crate::presence::is_alive;
use crate::sql::binds;
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Lease, Store, StoreError};

impl Store {
    /// Takes or renews a named lease for `ttl`; `None` while a live replica has it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn lease_acquire(
        &self,
        name: &str,
        ttl: Duration,
    ) -> Result<Option<Lease>, StoreError> {
        let acquire = Acquire {
            name: name.to_owned(),
            ttl,
        };
        self.write(acquire).await
    }

    /// Gives a lease back, if it is still this replica's.
    ///
    /// # Errors
    /// The database fails.
    pub async fn lease_release(&self, lease: &Lease) -> Result<(), StoreError> {
        self.write(Release(lease.clone())).await
    }
}

struct Acquire {
    name: String,
    ttl: Duration,
}

impl Write for Acquire {
    type Out = Option<Lease>;
    const ENTITY: &'static str = "lease";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Self::Out>, StoreError> {
        let sql = concat!(
            "INSERT INTO leases (name, owner, epoch, expires_at) VALUES ($1, $2, 1, $3) \
             ON CONFLICT (name) DO UPDATE SET \
             epoch = CASE WHEN leases.owner = excluded.owner THEN leases.epoch \
                          ELSE leases.epoch + 1 END, \
             owner = excluded.owner, expires_at = excluded.expires_at \
             WHERE leases.owner = excluded.owner OR leases.expires_at <= $4 OR NOT ",
            is_alive!("leases.owner", "$5"),
            " RETURNING epoch"
        );
        let expires_at = tx.now.as_microsecond().saturating_add(to_micros(self.ttl));
        let values = binds![
            self.name.as_str(),
            tx.replica.as_str(),
            expires_at,
            tx.now,
            tx.alive_since
        ];
        let rows = tx.fetch("take a lease", sql, values).await?;
        let Some(row) = rows.first() else {
            return Ok(Applied::Keep(None));
        };
        Ok(Applied::Keep(Some(Lease {
            name: self.name.clone(),
            epoch: row.columns("leases").int("epoch")?,
        })))
    }
}

struct Release(Lease);

impl Write for Release {
    type Out = ();
    const ENTITY: &'static str = "lease";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "UPDATE leases SET expires_at = 0 \
             WHERE name = $1 AND owner = $2 AND epoch = $3";
        let values = binds![self.0.name.as_str(), tx.replica.as_str(), self.0.epoch];
        tx.execute("give back a lease", sql, values).await?;
        Ok(Applied::Keep(()))
    }
}
