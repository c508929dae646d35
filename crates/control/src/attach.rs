//! Attaches to a command in a guest: opens the way there and copies bytes, without
//! looking at them, until either end closes.

use std::time::Duration;

use fuse_model::{EnvironmentId, State};
use fuse_wire_host::{HostError, attach::Request as AttachRequest, client::AttachStream};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, copy_buf};

use crate::{Control, Error, operation::not_running, provider::ProviderError};

/// Bytes that wait for a slow end, in each direction.
const BUFFER: usize = 64 * 1024;

/// An open way to a command in a guest. Dropping it ends the command.
#[derive(Debug)]
pub struct Attached {
    pub(crate) control: Control,
    pub(crate) environment: EnvironmentId,
    pub(crate) stream: AttachStream,
    /// How often it is noted that the environment is in use.
    pub(crate) step: Duration,
}

impl Control {
    /// Opens a way to a command in the guest of a running environment.
    ///
    /// # Errors
    /// It does not exist, does not run, has no guest, or its host refuses or fails.
    pub async fn attach(
        &self,
        id: &EnvironmentId,
        request: &AttachRequest,
    ) -> Result<Attached, Error> {
        self.attach_for("attach", id, request).await
    }

    /// [`Control::attach`] on behalf of `operation`.
    pub(crate) async fn attach_for(
        &self,
        operation: &'static str,
        id: &EnvironmentId,
        request: &AttachRequest,
    ) -> Result<Attached, Error> {
        let record = self.environment_get(id).await?;
        if !record.state.is_in(&State::ACCEPTS_OPERATIONS) {
            return Err(not_running(record.id, record.state));
        }
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        let stream = provider.attach(id, request).await;
        let stream = stream.map_err(|source| refused(operation, source))?;
        self.touch(id).await;
        Ok(Attached {
            control: self.clone(),
            step: self.activity_step(&record),
            environment: record.id,
            stream,
        })
    }
}

impl Attached {
    /// Relays once the client's connection was handed over. Shutdown waits for the end,
    /// which it brings about.
    pub fn relay_on<S, E>(self, handed_over: impl Future<Output = Result<S, E>> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        let control = self.control.clone();
        control.spawn(async move {
            match handed_over.await {
                Ok(client) => self.relay(client).await,
                Err(e) => tracing::debug!(error = %e, "a client left before it was attached"),
            }
        });
    }

    /// Copies bytes both ways until either end closes or the process stops.
    async fn relay(self, client: impl AsyncRead + AsyncWrite) {
        let stopping = self.control.clone();
        let (from_client, mut to_client) = tokio::io::split(client);
        let (from_guest, mut to_guest) = tokio::io::split(self.stream);
        let mut from_client = BufReader::with_capacity(BUFFER, from_client);
        let mut from_guest = BufReader::with_capacity(BUFFER, from_guest);
        let outcome = tokio::select! {
            outcome = copy_buf(&mut from_client, &mut to_guest) => outcome,
            outcome = copy_buf(&mut from_guest, &mut to_client) => outcome,
            never = self.control.stay_in_use(&self.environment, self.step) => match never {},
            () = stopping.stopping() => Ok(0),
        };
        // What was copied is on its way; the other end learns that there is no more. An
        // end that is gone already cannot be told.
        let _told = tokio::join!(to_client.shutdown(), to_guest.shutdown());
        if let Err(e) = outcome {
            tracing::debug!(vm_id = %self.environment, error = %e, "an attach ended");
        }
        self.control.touch(&self.environment).await;
    }
}

/// A host's conflict means that the VM has ended by itself.
pub(crate) fn refused(operation: &'static str, source: ProviderError) -> Error {
    match source {
        ProviderError::Host(HostError::Conflict { text, .. }) => Error::Stopped(text),
        ProviderError::Unsupported { .. } => Error::Provider {
            operation,
            source: ProviderError::Unsupported { operation },
        },
        source => Error::Provider { operation, source },
    }
}
