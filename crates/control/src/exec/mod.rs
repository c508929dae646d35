//! Runs a command in a guest.
//!
//! The call lives as long as its caller: when that goes away the command is killed, so
//! this is not a detached task.

mod stream;

use std::time::{Duration, Instant};

use fuse_model::{EnvironmentId, State};
use fuse_wire_host::{ExecRequest, ExecResponse};

pub use self::stream::{ExecOutput, ExecStream};
use crate::{Control, Error, attach::refused};

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
        let (begun, step) = (Instant::now(), self.activity_step(&environment));
        let request = command.request();
        let answer = tokio::select! {
            answer = provider.exec(id, &request) => answer,
            never = self.stay_in_use(id, step) => match never {},
        };
        if begun.elapsed() >= step {
            self.touch(id).await;
        }
        answer.map_err(|source| refused("exec", source))
    }
}
