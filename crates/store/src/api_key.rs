//! API keys.
use fuse_model::ApiKeyId;

use crate::{ApiKey, Store, StoreError};

impl Store {
    /// Stores a new key.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_insert(&self, _key: ApiKey) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }

    /// The key, live or revoked, of this hash; compare the hash in constant time.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_by_hash(&self, _hash: &[u8; 32]) -> Result<Option<ApiKey>, StoreError> {
        Err(StoreError::Closed)
    }

    /// All keys, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_list(&self) -> Result<Vec<ApiKey>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Revokes a key; a repeat keeps the first time. `false` for an unknown key.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_revoke(&self, _id: &ApiKeyId) -> Result<bool, StoreError> {
        Err(StoreError::Closed)
    }

    /// Notes that a key was used, at most once a minute.
    ///
    /// # Errors
    /// The database fails.
    pub async fn api_key_touch(&self, _id: &ApiKeyId) -> Result<(), StoreError> {
        Err(StoreError::Closed)
    }
}
