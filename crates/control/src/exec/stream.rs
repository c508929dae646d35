//! A command in a guest whose output is passed on as it is produced.
//!
//! The command is attached to without a terminal, and its frames are taken apart here. What is read
//! from the guest is bounded by what the caller takes: nothing is buffered but one frame.

use std::time::Duration;

use bytes::Bytes;
use fuse_model::EnvironmentId;
use fuse_wire_host::attach::{Codec, Exit, Frame, Request as AttachRequest};
use fuse_wire_host::client::AttachStream;
use fuse_wire_host::limits::CALL_GRACE;
use futures_util::StreamExt as _;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until, timeout};
use tokio_util::codec::{Decoder as _, Framed};

use super::Command;
use crate::attach::{Attached, refused};
use crate::{Control, Error};

/// How long a guest that broke off may take to answer whether it is still there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);

/// What a command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecOutput {
    /// On its standard output.
    Stdout(Bytes),
    /// On its standard error.
    Stderr(Bytes),
    /// Nothing more: it has ended.
    Exit(Exit),
}

/// A command that runs. Dropping it ends the command.
#[derive(Debug)]
pub struct ExecStream {
    control: Control,
    environment: EnvironmentId,
    frames: Framed<AttachStream, Codec>,
    deadline: Instant,
    in_use: Interval,
}

impl Command {
    fn attach(self, stdin: bool) -> AttachRequest {
        AttachRequest {
            cmd: self.argv,
            stdin,
            timeout_ms: Some(u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX)),
            ..AttachRequest::default()
        }
    }
}

impl Control {
    /// Starts a command without input.
    ///
    /// # Errors
    /// As [`Control::exec`].
    pub async fn exec_stream(
        &self,
        id: &EnvironmentId,
        command: Command,
    ) -> Result<ExecStream, Error> {
        let limit = command.timeout;
        let request = command.attach(false);
        let attached = self.attach_for("exec", id, &request).await?;
        let now = Instant::now();
        let mut in_use = interval_at(now + attached.step, attached.step);
        in_use.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(ExecStream {
            control: attached.control,
            environment: attached.environment,
            frames: Codec.framed(attached.stream),
            // The guest keeps the limit; this is for one that does not.
            deadline: now + limit + CALL_GRACE,
            in_use,
        })
    }

    /// Starts a command whose input stays open, for a caller that speaks frames.
    ///
    /// # Errors
    /// As [`Control::exec`].
    pub async fn exec_session(
        &self,
        id: &EnvironmentId,
        command: Command,
    ) -> Result<Attached, Error> {
        self.attach_for("exec", id, &command.attach(true)).await
    }
}

impl ExecStream {
    /// What comes next; after [`ExecOutput::Exit`] and after an error there is nothing more.
    ///
    /// # Errors
    /// How the command ends cannot be told: its guest or host went away, or this process stops.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Result<ExecOutput, Error> {
        let control = self.control.clone();
        loop {
            let frame = tokio::select! {
                frame = self.frames.next() => frame,
                _ = self.in_use.tick() => {
                    control.touch(&self.environment).await;
                    continue;
                }
                () = control.stopping() => return Err(Error::ShuttingDown),
                () = sleep_until(self.deadline) => {
                    return Err(Error::Failed(
                        "exec: the guest let the command run past its limit and was given up on"
                            .to_owned(),
                    ));
                }
            };
            match frame {
                Some(Ok(Frame::Stdout(bytes))) => return Ok(ExecOutput::Stdout(bytes)),
                Some(Ok(Frame::Stderr(bytes))) => return Ok(ExecOutput::Stderr(bytes)),
                Some(Ok(Frame::Exit(exit))) => {
                    control.touch(&self.environment).await;
                    return Ok(ExecOutput::Exit(exit));
                }
                Some(Ok(Frame::Stdin(_) | Frame::Resize(_) | Frame::Other(_))) => {}
                Some(Err(error)) => {
                    return Err(broken(&control, &self.environment, &error.to_string()).await);
                }
                None => return Err(broken(&control, &self.environment, "it was closed").await),
            }
        }
    }
}

/// Why there is no exit status: the guest's host knows whether the guest is still there, and what its
/// last words were.
async fn broken(control: &Control, id: &EnvironmentId, reason: &str) -> Error {
    let ask = async {
        let record = control.environment_get(id).await?;
        let providers = &control.inner.providers;
        let (_, provider) = providers.of(record.host_id.as_ref()).await?;
        let command = Command {
            argv: vec!["true".to_owned()],
            timeout: SIGN_OF_LIFE,
        };
        let answer = provider.exec(id, &command.request()).await;
        answer.map(drop).map_err(|source| refused("exec", source))
    };
    let what = match timeout(SIGN_OF_LIFE, ask).await {
        Ok(Err(error)) => return error,
        Ok(Ok(())) => "its guest agent or host agent was restarted; run it again",
        Err(_) => "the guest does not answer any more",
    };
    Error::Failed(format!(
        "exec: the connection to the command broke before the command ended ({reason}): {what}"
    ))
}
