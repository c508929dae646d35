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

    /// Takes a host out of placement; what runs there goes on.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn cordon_host(&self, id: &str) -> Result<(), Error> {
        self.act_on_host(id, "cordon").await
    }

    /// Puts a host back into placement.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn uncordon_host(&self, id: &str) -> Result<(), Error> {
        self.act_on_host(id, "uncordon").await
    }

    /// Removes a host that has no environments.
    ///
    /// # Errors
    /// See [`Error`]; a conflict while environments are assigned to it.
    pub async fn remove_host(&self, id: &str) -> Result<(), Error> {
        self.perform(self.call(Method::DELETE, &["v1", "hosts", id])?)
            .await
    }

    async fn act_on_host(&self, id: &str, action: &str) -> Result<(), Error> {
        let call = self.call(Method::POST, &["v1", "hosts", id])?;
        self.perform(call.query(&[("action", Some(action))])).await
    }
}
