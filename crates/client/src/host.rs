//! Hosts: register, read, take out of and put into rotation, remove.

use fuse_wire_api::{Host, HostList, PageQuery, RegisterHost};
use reqwest::Method;

use crate::{Client, Error};

impl Client {
    /// Registers a host, or replaces the registration of that id.
    ///
    /// # Errors
    /// See [`Error`]; an agent that rejects the token is `unauthorized`.
    pub async fn register_host(&self, request: &RegisterHost) -> Result<Host, Error> {
        self.fetch(self.call(Method::POST, &["v1", "hosts"])?.json(request)?)
            .await
    }

    /// One page of hosts, ordered by id.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn hosts(&self, page: &PageQuery) -> Result<HostList, Error> {
        let call = self.call(Method::GET, &["v1", "hosts"])?;
        let query = [
            ("limit", page.limit.as_deref()),
            ("cursor", page.cursor.as_deref()),
        ];
        self.fetch(call.query(&query)).await
    }

    /// One host.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn host(&self, id: &str) -> Result<Host, Error> {
        self.fetch(self.call(Method::GET, &["v1", "hosts", id])?)
            .await
    }
}
