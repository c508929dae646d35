//! API keys: making, listing, revoking, and finding the one that a request came with.
//!
//! A raw key is 32 random bytes. The store has its SHA-256, which is enough to find it
//! and, for a secret of that length, nothing to guess from.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use fuse_model::{ApiKeyId, Redacted};
use fuse_store::{ApiKey, Store, StoreError};
use fuse_wire_api::Scope;
use rand::Rng as _;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::{Control, Error, error::Missing};

/// How every raw key begins.
const PREFIX: &str = "fuse_sk_";

/// A key that was just made.
#[derive(Debug, Clone)]
pub struct MintedKey {
    /// As stored.
    pub record: ApiKey,
    /// The key itself; nobody can read it again.
    pub raw: Redacted<String>,
}

/// Makes a key and stores it. Apart from [`Control`], so that the first key can be made
/// without a running orchestrator.
///
/// # Errors
/// The store fails.
pub async fn mint_api_key(
    store: &Store,
    label: String,
    scopes: &[Scope],
) -> Result<MintedKey, StoreError> {
    let (mut secret, mut id) = ([0u8; 32], [0u8; 8]);
    rand::rng().fill_bytes(&mut secret);
    rand::rng().fill_bytes(&mut id);
    let raw = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(secret));
    let record = ApiKey {
        id: ApiKeyId::new(format!("ak_{}", hex::encode(id))),
        hash: hash(&raw),
        label,
        scopes: scopes
            .iter()
            .map(|scope| scope.as_str().to_owned())
            .collect(),
        created_at: fuse_model::truncate_to_micros(store.now()),
        last_used_at: None,
        revoked_at: None,
    };
    store.api_key_insert(record.clone()).await?;
    Ok(MintedKey {
        record,
        raw: Redacted::new(raw),
    })
}

fn hash(raw: &str) -> [u8; 32] {
    Sha256::digest(raw.as_bytes()).into()
}

impl Control {
    /// Makes a key.
    ///
    /// # Errors
    /// The store fails.
    pub async fn api_key_create(
        &self,
        label: String,
        scopes: &[Scope],
    ) -> Result<MintedKey, Error> {
        let minted = mint_api_key(&self.inner.store, label, scopes).await?;
        tracing::info!(api_key = %minted.record.id, "API key made");
        Ok(minted)
    }

    /// All keys, live and revoked, newest first.
    ///
    /// # Errors
    /// The store fails.
    pub async fn api_key_list(&self) -> Result<Vec<ApiKey>, Error> {
        Ok(self.inner.store.api_key_list().await?)
    }

    /// Revokes a key at once; a repeat changes nothing.
    ///
    /// # Errors
    /// There is no such key, or the store fails.
    pub async fn api_key_revoke(&self, id: &ApiKeyId) -> Result<(), Error> {
        if !self.inner.store.api_key_revoke(id).await? {
            return Err(Missing::ApiKey.into());
        }
        tracing::info!(api_key = %id, "API key revoked");
        Ok(())
    }

    /// The live key that `raw` is, if it is one. Its use is noted without waiting.
    ///
    /// # Errors
    /// The store fails, so that nobody knows.
    pub async fn api_key_authenticate(&self, raw: &str) -> Result<Option<ApiKey>, StoreError> {
        if !raw.starts_with(PREFIX) {
            return Ok(None);
        }
        let hash = hash(raw);
        let Some(key) = self.inner.store.api_key_by_hash(&hash).await? else {
            return Ok(None);
        };
        if key.revoked_at.is_some() || !bool::from(key.hash.ct_eq(&hash)) {
            return Ok(None);
        }
        self.note_use(key.clone());
        Ok(Some(key))
    }

    /// Best effort: a failed write leaves an older time.
    fn note_use(&self, key: ApiKey) {
        if !self.inner.store.api_key_touch_is_due(&key) {
            return;
        }
        let control = self.clone();
        self.spawn(async move {
            if let Err(e) = control.inner.store.api_key_touch(&key).await {
                tracing::warn!(api_key = %key.id, error = %crate::error::chain(&e), "cannot note the use of an API key");
            }
        });
    }
}
