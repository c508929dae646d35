//! Runs a command in a guest.
//!
//! The call lives as long as its caller: when that goes away the command is killed, so
//! this is not a detached task.

mod stream;

use std::time::Duration;

use fuse_model::{Environment, EnvironmentId, State};
use fuse_wire_host::{ExecRequest, ExecResponse};

pub use self::stream::{ExecOutput, ExecStream};
use crate::{Control, Error, attach::refused};

/// The activity clock is written at most this often.
const ACTIVITY_GRANULARITY: Duration = Duration::from_secs(30);

/// A command and its bound.
#[derive(Debug, Clone)]
pub struct Command {
    /// Argument vector, not empty.
    pub argv: Vec<String>,
    /// Time limit.
    pub timeout: Duration,
}

impl Command {
    pub(crate) fn request(self) -> ExecRequest {
        ExecRequest {
            cmd: self.argv,
            timeout_ms: Some(i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX)),
            ..ExecRequest::default()
        }
    }
}

impl Control {
    /// Runs a command and waits for it. Any exit status is a success.
    ///
    /// # Errors
    /// No such environment, not running, no guest, or the agent fails.
    pub async fn exec(&self, id: &EnvironmentId, command: Command) -> Result<ExecResponse, Error> {
        let environment = self.environment_get(id).await?;
        if !environment.state.is_in(&State::ACCEPTS_OPERATIONS) {
            return Err(Error::NotRunning {
                vm: environment.id,
                state: environment.state,
            });
        }
        self.note_activity(&environment).await;
        let (_, provider) = self
            .inner
            .providers
            .of(environment.host_id.as_ref())
            .await?;
        let answer = provider.exec(id, &command.request()).await;
        answer.map_err(|source| refused("exec", source))
    }

    /// Keeps the environment from counting as idle. Best effort: a failed write only
    /// makes the clock older than it is.
    async fn note_activity(&self, environment: &Environment) {
        let now = self.inner.store.now();
        let age = now.duration_since(environment.activity_at);
        if age.unsigned_abs() < ACTIVITY_GRANULARITY {
            return;
        }
        if let Err(e) = self
            .inner
            .store
            .environment_touch(&environment.id, now)
            .await
        {
            tracing::warn!(vm_id = %environment.id, error = %crate::error::chain(&e), "cannot note activity");
        }
    }
}
