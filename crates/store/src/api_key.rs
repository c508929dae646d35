//! API keys. The raw key is known to its holder only; the store has its digest.

use std::time::Duration;

use fuse_model::{ApiKeyId, to_micros};

use crate::sql::{Row, binds, to_json};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{ApiKey, Store, StoreError};

/// How exact `last_used_at` is: a key in steady use costs a write a minute.
const TOUCH_EVERY: Duration = Duration::from_secs(60);

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, hash, label, scopes, created_at, last_used_at, revoked_at FROM api_keys ",
            $rest
        )
    };
}

impl Store {
    /// Stores a new key.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_insert(&self, key: ApiKey) -> Result<(), StoreError> {
        self.write(Insert(key)).await
    }

    /// The key, live or revoked, of this hash; compare the hash in constant time.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_by_hash(&self, hash: &[u8; 32]) -> Result<Option<ApiKey>, StoreError> {
        let sql = select!("WHERE hash = $1");
        let rows = self
            .read("look up an API key", sql, binds![hash.to_vec()])
            .await?;
        rows.first().map(from_row).transpose()
    }

    /// All keys, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_list(&self) -> Result<Vec<ApiKey>, StoreError> {
        let sql = select!("ORDER BY created_at DESC, id DESC");
        let rows = self.read("list API keys", sql, Vec::new()).await?;
        rows.iter().map(from_row).collect()
    }

    /// Revokes a key; a repeat keeps the first time. `false` for an unknown key.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_revoke(&self, id: &ApiKeyId) -> Result<bool, StoreError> {
        self.write(Revoke(id.clone())).await
    }

    /// Whether the last noted use of a key, as it was just looked up, is a minute old.
    pub fn api_key_touch_is_due(&self, key: &ApiKey) -> bool {
        let due = self.now().as_microsecond() - to_micros(TOUCH_EVERY);
        key.last_used_at.is_none_or(|at| at.as_microsecond() < due)
    }

    /// Notes that a key, as it was just looked up, was used: a write at most
    /// once a minute.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_touch(&self, key: &ApiKey) -> Result<(), StoreError> {
        if !self.api_key_touch_is_due(key) {
            return Ok(());
        }
        self.write(Touch(key.id.clone())).await
    }
}

struct Insert(ApiKey);

impl Write for Insert {
    type Out = ();
    const ENTITY: &'static str = "api_key";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let key = &self.0;
        let sql = "INSERT INTO api_keys \
             (id, hash, label, scopes, created_at, last_used_at, revoked_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let values = binds![
            key.id.as_str(),
            key.hash.to_vec(),
            key.label.as_str(),
            to_json("api_keys", "scopes", &key.scopes)?,
            key.created_at,
            key.last_used_at,
            key.revoked_at
        ];
        tx.execute("insert an API key", sql, values).await?;
        Ok(Applied::Keep(()))
    }
}

struct Revoke(ApiKeyId);

impl Write for Revoke {
    type Out = bool;
    const ENTITY: &'static str = "api_key";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<bool>, StoreError> {
        let sql = "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, $2) WHERE id = $1";
        let changed = tx
            .execute("revoke an API key", sql, binds![self.0.as_str(), tx.now])
            .await?;
        Ok(Applied::Keep(changed > 0))
    }
}

struct Touch(ApiKeyId);

impl Write for Touch {
    type Out = ();
    const ENTITY: &'static str = "api_key";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        // Requests that came together all found it due; one of them is enough.
        let sql = "UPDATE api_keys SET last_used_at = $2 \
             WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $3)";
        let due = tx.now.as_microsecond() - to_micros(TOUCH_EVERY);
        let values = binds![self.0.as_str(), tx.now, due];
        tx.execute("note the use of an API key", sql, values)
            .await?;
        Ok(Applied::Keep(()))
    }
}

fn from_row(row: &Row) -> Result<ApiKey, StoreError> {
    let mut columns = row.columns("api_keys");
    Ok(ApiKey {
        id: ApiKeyId::new(columns.text("id")?),
        hash: {
            let hash = columns.bytes("hash")?;
            hash.try_into()
                .map_err(|_| columns.corrupt("hash", "it is not 32 bytes"))?
        },
        label: columns.text("label")?,
        scopes: columns.json("scopes")?,
        created_at: columns.time("created_at")?,
        last_used_at: columns.opt_time("last_used_at")?,
        revoked_at: columns.opt_time("revoked_at")?,
    })
}
