//! Snapshots, and the forks made of them.

use std::time::Duration;

use fuse_wire_api::{
    CreateSnapshot, Environment, ForkEnvironment, ListSnapshots, MigrateEnvironment,
    ResolvedSnapshot, Snapshot, SnapshotList,
};
use reqwest::Method;

use crate::transport::Call;
use crate::{Client, Error};

/// Bound of calls that copy a disk.
const COPY_TIMEOUT: Duration = Duration::from_secs(900);

impl Client {
    /// Takes a snapshot of a running environment.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_snapshot(
        &self,
        environment: &str,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        self.fetch(self.snapshot_call(environment, request)?).await
    }

    /// Takes a snapshot and returns as soon as the server has accepted it: its record is
    /// `creating` and becomes `ready`, or `error` with the reason. An older server returns when it
    /// is taken.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn create_snapshot_in_background(
        &self,
        environment: &str,
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        let call = self.snapshot_call(environment, request)?;
        self.fetch(call.in_background()).await
    }

    fn snapshot_call(&self, environment: &str, request: &CreateSnapshot) -> Result<Call, Error> {
        let path = ["v1", "environments", environment, "snapshots"];
        let call = self.call(Method::POST, &path)?;
        call.timeout(Some(COPY_TIMEOUT)).json(request)
    }

    /// One page of snapshots, newest first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn snapshots(&self, query: &ListSnapshots) -> Result<SnapshotList, Error> {
        let call = self.call(Method::GET, &["v1", "snapshots"])?;
        self.fetch(call.query(query)?).await
    }

    /// One snapshot.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn snapshot(&self, id: &str) -> Result<Snapshot, Error> {
        self.fetch(self.call(Method::GET, &["v1", "snapshots", id])?)
            .await
    }

    /// The newest usable build layer with this key.
    ///
    /// # Errors
    /// See [`Error`]; that there is none is no error.
    pub async fn resolve_snapshot(
        &self,
        layer_key: &str,
        arch: &str,
    ) -> Result<ResolvedSnapshot, Error> {
        let call = self
            .call(Method::GET, &["v1", "snapshots", "resolve"])?
            .query(&[("layer_key", layer_key), ("arch", arch)])?;
        self.fetch(call).await
    }

    /// Puts a snapshot in the place of its running environment.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn restore_snapshot(&self, id: &str) -> Result<(), Error> {
        let call = self.act("snapshots", id, "restore")?;
        self.perform(call.timeout(Some(COPY_TIMEOUT))).await
    }

    /// Deletes a snapshot and its bytes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn delete_snapshot(&self, id: &str) -> Result<(), Error> {
        self.perform(self.call(Method::DELETE, &["v1", "snapshots", id])?)
            .await
    }

    /// Forks a running environment and returns when the fork runs. `None` when it is gone by the
    /// time the server answers.
    ///
    /// # Errors
    /// See [`Error`]; a fork that failed has left nothing behind.
    pub async fn fork(
        &self,
        environment: &str,
        request: &ForkEnvironment,
    ) -> Result<Option<Environment>, Error> {
        let call = self
            .act("environments", environment, "fork")?
            .timeout(Some(COPY_TIMEOUT))
            .json(request)?;
        self.fetch_if_any(call).await
    }

    /// Moves a running environment to another host and returns when it runs there.
    ///
    /// # Errors
    /// See [`Error`]; an environment that was not moved goes on where it is.
    pub async fn migrate(
        &self,
        environment: &str,
        request: &MigrateEnvironment,
    ) -> Result<Environment, Error> {
        let call = self
            .act("environments", environment, "migrate")?
            .timeout(Some(COPY_TIMEOUT))
            .json(request)?;
        self.fetch(call).await
    }
}
