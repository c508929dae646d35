//! API keys; every call needs the master token.

use fuse_wire_api::{ApiKeyList, CreateApiKey, CreatedApiKey};
use reqwest::Method;

use crate::{Client, Error};

impl Client {
    /// Makes a key. The answer is the only place where the key itself is ever seen.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_api_key(&self, request: &CreateApiKey) -> Result<CreatedApiKey, Error> {
        self.fetch(
            self.call(Method::POST, &["v1", "api-keys"])?
                .json(request)?,
        )
        .await
    }

    /// All keys, revoked ones included, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn api_keys(&self) -> Result<ApiKeyList, Error> {
        self.fetch(self.call(Method::GET, &["v1", "api-keys"])?)
            .await
    }

    /// Takes the rights of a key away, at once and for good.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn revoke_api_key(&self, id: &str) -> Result<(), Error> {
        self.perform(self.call(Method::DELETE, &["v1", "api-keys", id])?)
            .await
    }
}
