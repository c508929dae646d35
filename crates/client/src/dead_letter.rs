//! What reconcile has given up on.

use fuse_wire_api::{DeadLetterList, PageQuery};
use reqwest::Method;

use crate::{Client, Error};

impl Client {
    /// One page of what was given up on, by kind and entity. Needs the master token.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn dead_letters(&self, page: &PageQuery) -> Result<DeadLetterList, Error> {
        let call = self.call(Method::GET, &["v1", "dead-letters"])?;
        self.fetch(call.query(page)?).await
    }
}
