//! Environments: create, read, destroy.

use std::time::Duration;

use fuse_wire_api::{CreateEnvironment, Environment, EnvironmentList, ListEnvironments};
use reqwest::{Method, StatusCode};

use crate::transport::{decode, read};
use crate::{Client, Error};

/// Bound of a create that returns only when the guest runs: boot, files, startup script.
const CREATE_TIMEOUT: Duration = Duration::from_secs(600);
/// The server gives the drain command 30 seconds.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(90);

/// Outcome of a create that does not wait.
#[derive(Debug, Clone)]
pub struct Created {
    /// The record as it was when the server answered.
    pub environment: Environment,
    /// The server went on in the background: the record is not running yet, its events tell the
    /// rest. False from a server that waits whatever it is asked.
    pub in_progress: bool,
}

impl Client {
    /// Creates an environment and returns when it runs.
    ///
    /// # Errors
    /// See [`Error`]; a create that failed has left nothing behind.
    pub async fn create(&self, request: &CreateEnvironment) -> Result<Environment, Error> {
        let call = self.call(Method::POST, &["v1", "environments"])?;
        self.fetch(call.timeout(Some(CREATE_TIMEOUT)).json(request)?)
            .await
    }

    /// Creates an environment and returns as soon as the server has accepted it.
    ///
    /// # Errors
    /// See [`Error`]: validation and placement are answered here, everything later by the events.
    pub async fn create_in_background(
        &self,
        request: &CreateEnvironment,
    ) -> Result<Created, Error> {
        let call = self
            .call(Method::POST, &["v1", "environments"])?
            .timeout(Some(CREATE_TIMEOUT))
            .in_background()
            .json(request)?;
        let response = self.send(call).await?;
        let in_progress = response.status() == StatusCode::ACCEPTED;
        let url = self.base_url().to_string();
        let environment = decode(&read(response, &url).await?, &url)?;
        Ok(Created {
            environment,
            in_progress,
        })
    }

    /// One page of environments, ordered by id.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn environments(&self, query: &ListEnvironments) -> Result<EnvironmentList, Error> {
        let call = self.call(Method::GET, &["v1", "environments"])?;
        self.fetch(call.query(query)?).await
    }

    /// One environment.
    ///
    /// # Errors
    /// See [`Error`]; a destroyed or failed environment is not found.
    pub async fn environment(&self, id: &str) -> Result<Environment, Error> {
        self.fetch(self.call(Method::GET, &["v1", "environments", id])?)
            .await
    }

    /// Destroys an environment, from any state.
    ///
    /// # Errors
    /// See [`Error`]; the second call for one id is not found.
    pub async fn destroy(&self, id: &str) -> Result<(), Error> {
        // The server stops the guest before it answers.
        let call = self.call(Method::DELETE, &["v1", "environments", id])?;
        self.perform(call.timeout(Some(CREATE_TIMEOUT))).await
    }

    /// Asks the workload of an environment to stop; it is not destroyed. `None` when it is gone
    /// by the time the server answers.
    ///
    /// # Errors
    /// See [`Error`]; when the drain command fails the environment is draining all the same.
    pub async fn drain(&self, id: &str) -> Result<Option<Environment>, Error> {
        let call = self.act("environments", id, "drain")?;
        self.fetch_if_any(call.timeout(Some(DRAIN_TIMEOUT))).await
    }

    /// Gives the guest agent of an environment new credentials, which are in force when this
    /// returns.
    ///
    /// # Errors
    /// See [`Error`]; the old credentials are in force then.
    pub async fn rotate_token(&self, id: &str) -> Result<(), Error> {
        let call = self.act("environments", id, "rotate-token")?;
        self.perform(call.timeout(Some(CREATE_TIMEOUT))).await
    }
}
