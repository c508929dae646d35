//! Client of QEMU's monitor.
//!
//! One command at a time; a task reads all the lines. Of the events only the
//! latest word on the few things of interest is kept, so nothing queues up when
//! nobody looks, and a command never waits behind events.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd as _};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::json;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::commands::{Command, Message, QmpCapabilities, VersionTriple};

/// The monitor failed us.
#[derive(Debug, Error)]
pub enum QmpError {
    /// It is gone.
    #[error("QEMU's monitor closed before {command} was answered")]
    Closed {
        /// What it was told.
        command: &'static str,
    },
    /// It cannot be told anything.
    #[error("QEMU's monitor could not be written to for {command}")]
    Write {
        /// What it was to be told.
        command: &'static str,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// It does not do what it was told.
    #[error("QEMU refused {command}: {reason}")]
    Refused {
        /// What it was told.
        command: &'static str,
        /// Its reason.
        reason: String,
    },
    /// It says something else than it should.
    #[error("QEMU's answer to {command} is not understood")]
    Answer {
        /// What it was told.
        command: &'static str,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
    /// It is none.
    #[error("QEMU's monitor did not greet")]
    Greeting,
}

/// What the events have said.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Set once the machine is on its way down.
    pub shutdown: Option<Shutdown>,
    /// Migrations that are over, one way or the other.
    migrations: u32,
    /// Whether the last of them was completed.
    migrated: bool,
}

/// Why the machine goes down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// The guest powered off or rebooted, rather than the host ending it.
    pub by_guest: bool,
    /// QEMU's word for it.
    pub reason: String,
}

type Reply = Result<serde_json::Value, String>;

/// A monitor that has been greeted.
#[derive(Debug)]
pub struct Qmp {
    stream: OwnedWriteHalf,
    replies: mpsc::Receiver<Reply>,
    observed: watch::Receiver<Observed>,
    version: VersionTriple,
    /// Holds the reader; aborts it when dropped.
    reader: JoinSet<()>,
}

impl Qmp {
    /// Waits for the greeting and ends the negotiation.
    ///
    /// # Errors
    /// The other end closes or is no monitor.
    pub async fn connect(stream: UnixStream) -> Result<Self, QmpError> {
        let (lines, stream) = stream.into_split();
        let (observe, observed) = watch::channel(Observed::default());
        let (reply, replies) = mpsc::channel(1);
        let (greet, mut greeting) = mpsc::channel(1);
        let reader = Reader {
            greet,
            reply,
            observe,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(reader.run(lines));
        let version = greeting.recv().await.ok_or(QmpError::Greeting)?;
        let mut qmp = Self {
            stream,
            replies,
            observed,
            version,
            reader: tasks,
        };
        qmp.execute(QmpCapabilities {}).await?;
        Ok(qmp)
    }

    /// Version of QEMU as `major.minor`: what decides whether it reads a
    /// snapshot of another.
    #[must_use]
    pub fn version(&self) -> String {
        let VersionTriple { major, minor, .. } = self.version;
        format!("{major}.{minor}")
    }

    /// Starts a migration with `command` and waits for its end; true if it was
    /// completed. Migration events must have been asked for.
    ///
    /// # Errors
    /// QEMU refuses it or is gone.
    pub async fn migrate<C: Command>(&mut self, command: C) -> Result<bool, QmpError> {
        let before = self.observed.borrow().migrations;
        self.execute(command).await?;
        let over = self
            .observed
            .wait_for(|seen| seen.migrations != before)
            .await;
        let over = over.map_err(|_| QmpError::Closed { command: C::NAME })?;
        Ok(over.migrated)
    }

    /// Reads on to the end of the connection; returns what was seen by then.
    pub async fn drain(&mut self) -> Observed {
        while self.reader.join_next().await.is_some() {}
        self.observed.borrow().clone()
    }

    /// Carries out one command.
    ///
    /// # Errors
    /// QEMU refuses it or is gone.
    pub async fn execute<C: Command>(&mut self, command: C) -> Result<C::Return, QmpError> {
        self.exchange(command, None::<&UnixStream>).await
    }

    /// Carries out one command that brings a descriptor along.
    ///
    /// # Errors
    /// QEMU refuses it or is gone.
    pub async fn execute_with_fd<C: Command>(
        &mut self,
        command: C,
        fd: &impl AsFd,
    ) -> Result<C::Return, QmpError> {
        self.exchange(command, Some(fd)).await
    }

    async fn exchange<C: Command>(
        &mut self,
        arguments: C,
        fd: Option<&impl AsFd>,
    ) -> Result<C::Return, QmpError> {
        let command = C::NAME;
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.send(line.as_bytes(), fd)
            .await
            .map_err(|source| QmpError::Write { command, source })?;
        let reply = self
            .replies
            .recv()
            .await
            .ok_or(QmpError::Closed { command })?;
        let value = reply.map_err(|reason| QmpError::Refused { command, reason })?;
        serde_json::from_value(value).map_err(|source| QmpError::Answer { command, source })
    }

    /// Writes all of `bytes`; the descriptor goes with the first of them.
    async fn send(&self, mut bytes: &[u8], fd: Option<&impl AsFd>) -> io::Result<()> {
        let fds: Vec<_> = fd.map(|fd| fd.as_fd().as_raw_fd()).into_iter().collect();
        let mut rights: &[_] = &fds;
        let stream = self.stream.as_ref();
        while !bytes.is_empty() {
            let sent = stream
                .async_io(Interest::WRITABLE, || {
                    let control = [ControlMessage::ScmRights(rights)];
                    let control = if rights.is_empty() {
                        &[][..]
                    } else {
                        &control[..]
                    };
                    let parts = [IoSlice::new(bytes)];
                    let socket = stream.as_raw_fd();
                    Ok(sendmsg::<()>(
                        socket,
                        &parts,
                        control,
                        MsgFlags::MSG_NOSIGNAL,
                        None,
                    )?)
                })
                .await?;
            bytes = &bytes[sent..];
            rights = &[];
        }
        Ok(())
    }
}

struct Reader {
    greet: mpsc::Sender<VersionTriple>,
    reply: mpsc::Sender<Reply>,
    observe: watch::Sender<Observed>,
}

impl Reader {
    async fn run(self, stream: OwnedReadHalf) {
        let mut lines = BufReader::new(stream).lines();
        loop {
            let line = match lines.next_line().await {
                Ok(Some(line)) => line,
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "monitor connection broke");
                    return;
                }
            };
            match serde_json::from_str(&line) {
                Ok(message) => self.take(message).await,
                // It may have been an answer: whoever waits for one must not wait forever.
                Err(error) => {
                    tracing::error!(%error, line, "monitor line is not understood");
                    return;
                }
            }
        }
    }

    async fn take(&self, message: Message) {
        match message {
            Message::Greeting { qmp } => drop(self.greet.send(qmp.version.qemu).await),
            Message::Return { value } => drop(self.reply.send(Ok(value)).await),
            Message::Error { error } => drop(self.reply.send(Err(error.desc)).await),
            Message::Event { event, data } => {
                tracing::debug!(event, %data, "monitor event");
                self.observe.send_modify(|seen| match event.as_str() {
                    "SHUTDOWN" => {
                        seen.shutdown.get_or_insert(Shutdown {
                            by_guest: data["guest"] == true,
                            reason: data["reason"].as_str().unwrap_or("unknown").to_owned(),
                        });
                    }
                    "MIGRATION" => {
                        let status = data["status"].as_str().unwrap_or_default();
                        if ["completed", "failed", "cancelled"].contains(&status) {
                            seen.migrations += 1;
                            seen.migrated = status == "completed";
                        }
                    }
                    _ => {}
                });
            }
        }
    }
}
