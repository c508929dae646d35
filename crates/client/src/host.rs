//! Hosts: register, read, take out of and put into rotation, remove.

use fuse_wire_api::{
    ExplainPlacement, Host, HostList, PageQuery, PlacementExplanation, RegisterHost,
};
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
        self.fetch(call.query(page)?).await
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
        self.perform(self.act("hosts", id, "cordon")?).await
    }

    /// Puts a host back into placement.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn uncordon_host(&self, id: &str) -> Result<(), Error> {
        self.perform(self.act("hosts", id, "uncordon")?).await
    }

    /// Takes a host out of placement for good. What is done with its environments is
    /// `none`, `migrate` or `drain`; none is destroyed.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn drain_host(&self, id: &str, evict: &str) -> Result<(), Error> {
        let call = self.act("hosts", id, "drain")?;
        self.perform(call.query(&[("evict", evict)])?).await
    }

    /// Asks a host's agent again what the host has.
    ///
    /// # Errors
    /// See [`Error`]; an agent that rejects the token is `unauthorized`.
    pub async fn probe_host(&self, id: &str) -> Result<Host, Error> {
        self.fetch(self.act("hosts", id, "probe")?).await
    }

    /// Where an environment would go, and why not elsewhere. Nothing is made.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn explain_placement(
        &self,
        request: &ExplainPlacement,
    ) -> Result<PlacementExplanation, Error> {
        let call = self.call(Method::POST, &["v1", "placement", "explain"])?;
        self.fetch(call.json(request)?).await
    }

    /// Removes a host that has no environments.
    ///
    /// # Errors
    /// See [`Error`]; a conflict while environments are assigned to it.
    pub async fn remove_host(&self, id: &str) -> Result<(), Error> {
        self.perform(self.call(Method::DELETE, &["v1", "hosts", id])?)
            .await
    }
}
