//! Idempotency keys of creates. A key is claimed in the transaction that inserts the
//! environment (see `environment/insert.rs`), so that it exists if and only if the
//! environment did; what the caller was told is added when it is known.

use std::time::Duration;

use fuse_model::{EnvironmentId, TaskId, to_micros};

use crate::sql::{Row, binds};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{
    IdempotencyRecord, IdempotentKey, KeptAnswer, NewEnvironment, Store, StoreError, StoredAnswer,
};

/// How long a key is good for.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

impl Store {
    /// What a key was used for in the last 24 hours.
    ///
    /// # Errors
    /// The database fails.
    pub async fn idempotency_get(
        &self,
        tenant: &str,
        key: &str,
    ) -> Result<Option<IdempotencyRecord>, StoreError> {
        let sql = "SELECT fingerprint, environment_id, task_id, status, body \
             FROM idempotency_keys WHERE tenant = $1 AND key = $2 AND created_at > $3";
        let oldest = self.settled_now().as_microsecond() - to_micros(LIFETIME);
        let rows = self
            .read(
                "look up an idempotency key",
                sql,
                binds![tenant, key, oldest],
            )
            .await?;
        rows.first().map(from_row).transpose()
    }

    /// Keeps what the caller with this key was told. The first answer stays.
    ///
    /// # Errors
    /// The database fails.
    pub async fn idempotency_answer(
        &self,
        tenant: &str,
        key: &str,
        answer: StoredAnswer,
    ) -> Result<(), StoreError> {
        let write = KeepAnswer {
            tenant: tenant.to_owned(),
            key: key.to_owned(),
            answer,
        };
        self.write(write).await
    }

    /// Forgets keys that are no longer good, at most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn idempotency_prune(&self, limit: u32) -> Result<u64, StoreError> {
        self.write(Prune { limit }).await
    }
}

/// Keeps an answer together with what it tells of. A key that is in use keeps its first.
pub(crate) async fn keep_in_tx(
    tx: &mut Tx<'_>,
    of: &EnvironmentId,
    kept: &KeptAnswer,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO idempotency_keys \
         (tenant, key, fingerprint, environment_id, task_id, created_at, status, body) \
         VALUES ($1, $2, $3, $4, '', $5, $6, $7) \
         ON CONFLICT (tenant, key) DO UPDATE SET fingerprint = excluded.fingerprint, \
         environment_id = excluded.environment_id, task_id = excluded.task_id, \
         created_at = excluded.created_at, status = excluded.status, body = excluded.body \
         WHERE idempotency_keys.created_at <= $8";
    let values = binds![
        kept.tenant.as_str(),
        kept.key.key.as_str(),
        kept.key.fingerprint.to_vec(),
        of.as_str(),
        tx.now,
        i64::from(kept.answer.status),
        kept.answer.body.as_str(),
        tx.settled.as_microsecond() - to_micros(LIFETIME)
    ];
    tx.execute("keep an idempotency key", sql, values).await?;
    Ok(())
}

/// Takes a key for an environment that is being inserted. `false`: it is in use.
pub(crate) async fn claim_in_tx(
    tx: &mut Tx<'_>,
    key: &IdempotentKey,
    new: &NewEnvironment,
) -> Result<bool, StoreError> {
    let sql = "INSERT INTO idempotency_keys \
         (tenant, key, fingerprint, environment_id, task_id, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (tenant, key) DO UPDATE SET fingerprint = excluded.fingerprint, \
         environment_id = excluded.environment_id, task_id = excluded.task_id, \
         created_at = excluded.created_at, status = NULL, body = NULL \
         WHERE idempotency_keys.created_at <= $7";
    let values = binds![
        new.tenant.as_str(),
        key.key.as_str(),
        key.fingerprint.to_vec(),
        new.id.as_str(),
        new.task_id.as_str(),
        tx.now,
        tx.settled.as_microsecond() - to_micros(LIFETIME)
    ];
    let changed = tx.execute("claim an idempotency key", sql, values).await?;
    Ok(changed > 0)
}

struct KeepAnswer {
    tenant: String,
    key: String,
    answer: StoredAnswer,
}

impl Write for KeepAnswer {
    type Out = ();
    const ENTITY: &'static str = "idempotency_key";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "UPDATE idempotency_keys SET status = $3, body = $4 \
             WHERE tenant = $1 AND key = $2 AND status IS NULL";
        let values = binds![
            self.tenant.as_str(),
            self.key.as_str(),
            i64::from(self.answer.status),
            self.answer.body.as_str()
        ];
        tx.execute("keep an answer", sql, values).await?;
        Ok(Applied::Keep(()))
    }
}

struct Prune {
    limit: u32,
}

impl Write for Prune {
    type Out = u64;
    const ENTITY: &'static str = "idempotency_key";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<u64>, StoreError> {
        let sql = "DELETE FROM idempotency_keys WHERE (tenant, key) IN \
             (SELECT tenant, key FROM idempotency_keys WHERE created_at <= $1 LIMIT $2)";
        let oldest = tx.settled.as_microsecond() - to_micros(LIFETIME);
        tx.execute("prune idempotency keys", sql, binds![oldest, self.limit])
            .await
            .map(Applied::Keep)
    }
}

fn from_row(row: &Row) -> Result<IdempotencyRecord, StoreError> {
    let mut columns = row.columns("idempotency_keys");
    let fingerprint = columns.bytes("fingerprint")?;
    let fingerprint = fingerprint
        .try_into()
        .map_err(|_| columns.corrupt("fingerprint", "it is not 32 bytes"))?;
    let environment_id = EnvironmentId::new(columns.text("environment_id")?);
    let task_id = TaskId::new(columns.text("task_id")?);
    let status = columns.opt_int("status")?;
    let body = columns.opt_text("body")?;
    let answer = match status.zip(body) {
        None => None,
        Some((status, body)) => Some(StoredAnswer {
            status: u16::try_from(status)
                .map_err(|_| columns.corrupt("status", "it is no HTTP status"))?,
            body,
        }),
    };
    Ok(IdempotencyRecord {
        fingerprint,
        environment_id,
        task_id,
        answer,
    })
}
