//! Runs commands for the host: separate streams, exit status, time limit.
//!
//! A command ends with everything it started when its time is over or its
//! caller goes away, and only then: what it leaves in the background when it
//! ends by itself goes on running.

mod attached;
mod capture;
mod command;
mod terminal;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse_wire_guest::Blob;
use fuse_wire_guest::control::{
    EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_SIGNAL_BASE, EXIT_TIMED_OUT, ExecRequest,
    ExecResponse, MAX_OUTPUT_BYTES,
};
use thiserror::Error;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroup::Cgroups;
use crate::reaper::{Exit, Reaper};
use capture::{Budget, Captured, capture};
use command::{Launched, Running, Streams};

/// Commands that run at a time.
const MAX_RUNNING: usize = 128;

/// Commands with a connection of their own at a time; each may hold a few MiB of input.
const MAX_ATTACHED: usize = 32;

/// A process that was killed may be stuck in the kernel; its caller is not.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// Why a command was not run. A command that ran and failed is not an error.
#[derive(Debug, Error)]
pub(crate) enum ExecError {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Too many commands are attached already.
    #[error("{MAX_ATTACHED} commands are attached already; end one of them")]
    BusyAttached,
    /// Too many commands run already.
    #[error("{MAX_RUNNING} commands are running already; wait for one to end")]
    Busy,
    /// The guest could not start a process.
    #[error("the guest cannot start a process: {0}")]
    Start(#[source] std::io::Error),
}

/// Runs commands.
#[derive(Debug)]
pub(crate) struct Executor {
    reaper: Arc<Reaper>,
    cgroups: Option<Arc<Cgroups>>,
    running: Semaphore,
    attached: Arc<Semaphore>,
    budget: Arc<Budget>,
    background: TaskTracker,
}

impl Executor {
    /// `cgroups` is absent where the guest has none; `memory` bounds the output
    /// held at a time, in bytes.
    pub(crate) fn new(
        reaper: Arc<Reaper>,
        cgroups: Option<Arc<Cgroups>>,
        memory: usize,
        background: TaskTracker,
    ) -> Self {
        Self {
            reaper,
            cgroups,
            running: Semaphore::new(MAX_RUNNING),
            attached: Arc::new(Semaphore::new(MAX_ATTACHED)),
            budget: Arc::new(Budget::new(memory)),
            background,
        }
    }

    /// Runs a command to its end. Dropping the future ends it.
    ///
    /// # Errors
    /// The request is invalid, or the guest has no room for another process.
    pub(crate) async fn run(&self, request: ExecRequest) -> Result<ExecResponse, ExecError> {
        let started = Instant::now();
        let limit = Duration::from_millis(request.timeout_ms);
        let cap = request
            .max_output_bytes
            .unwrap_or(MAX_OUTPUT_BYTES)
            .min(MAX_OUTPUT_BYTES);
        let cap = usize::try_from(cap).unwrap_or(usize::MAX);
        command::check(&request)?;
        let _slot = self.running.try_acquire().map_err(|_| ExecError::Busy)?;
        let stdin = request.stdin_b64.clone();
        let streams = Streams::Pipes {
            stdin: stdin.is_some(),
        };
        let launched = self.launch(request, streams).await?;
        let mut running = match launched {
            Launched::Running(running) => running,
            Launched::Refused { exit_code, reason } => {
                return Ok(refused(exit_code, reason, started));
            }
        };

        let ended = CancellationToken::new();
        let stdout = capture(running.stdout.take(), cap, &self.budget, &ended);
        let stderr = capture(running.stderr.take(), cap, &self.budget, &ended);
        let feed = feed(running.stdin.take(), stdin, &ended);
        let finish = async {
            let outcome = running.wait(limit).await;
            ended.cancel();
            outcome
        };
        let (outcome, stdout, stderr, ()) = tokio::join!(finish, stdout, stderr, feed);
        drop(running);
        let stdout = self.let_go(stdout);
        let stderr = self.let_go(stderr);
        Ok(respond(outcome, stdout, stderr, started))
    }

    /// Starts the process off the runtime's threads: under memory pressure it may take long.
    async fn launch(&self, request: ExecRequest, streams: Streams) -> Result<Launched, ExecError> {
        let reaper = Arc::clone(&self.reaper);
        let cgroups = self.cgroups.clone();
        let launch = move || command::launch(&request, &streams, &reaper, cgroups);
        match tokio::task::spawn_blocking(launch).await {
            Ok(launched) => launched,
            Err(error) => Err(ExecError::Start(std::io::Error::other(error))),
        }
    }

    fn attach_slot(&self) -> Result<OwnedSemaphorePermit, ExecError> {
        let slots = Arc::clone(&self.attached);
        slots
            .try_acquire_owned()
            .map_err(|_| ExecError::BusyAttached)
    }

    /// Runs `work` beside whatever asked for it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(work);
    }

    /// Goes on reading what a background process writes to a pipe it inherited,
    /// so that it is not stopped or ended by a pipe nobody reads.
    fn let_go(&self, mut captured: Captured) -> Captured {
        if let Some(pipe) = captured.rest.take() {
            self.background.spawn(discard(pipe));
        }
        captured
    }
}

/// How a run went.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    exit: Option<Exit>,
    timed_out: bool,
}

impl Running {
    async fn wait(&mut self, limit: Duration) -> Outcome {
        if let Ok(exit) = timeout(limit, &mut self.exit).await {
            self.ended();
            return Outcome {
                exit: exit.ok(),
                timed_out: false,
            };
        }
        self.kill();
        let exit = timeout(KILL_PATIENCE, &mut self.exit).await;
        Outcome {
            exit: exit.ok().and_then(Result::ok),
            timed_out: true,
        }
    }
}

/// The exit code, and the signal if one ended the command.
fn exit_code_of(outcome: Outcome) -> (i32, Option<i32>) {
    match outcome.exit {
        _ if outcome.timed_out => (EXIT_TIMED_OUT, None),
        Some(Exit::Code(code)) => (code, None),
        Some(Exit::Signal(signal)) => (EXIT_SIGNAL_BASE + signal, Some(signal)),
        // The reaper is gone, which does not happen while PID 1 lives.
        None => (EXIT_SIGNAL_BASE, None),
    }
}

fn respond(outcome: Outcome, stdout: Captured, stderr: Captured, started: Instant) -> ExecResponse {
    let (exit_code, signal) = exit_code_of(outcome);
    ExecResponse {
        exit_code,
        signal,
        stdout_truncated: stdout.truncated,
        stderr_truncated: stderr.truncated,
        stdout_b64: Blob(stdout.bytes),
        stderr_b64: Blob(stderr.bytes),
        timed_out: outcome.timed_out,
        duration_ms: elapsed_ms(started),
    }
}

fn refused(exit_code: i32, reason: String, started: Instant) -> ExecResponse {
    ExecResponse {
        exit_code,
        stderr_b64: Blob(reason.into_bytes()),
        duration_ms: elapsed_ms(started),
        ..ExecResponse::default()
    }
}

fn elapsed_ms(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Writes the command's input until it has ended or does not want more.
async fn feed(pipe: Option<pipe::Sender>, input: Option<Blob>, ended: &CancellationToken) {
    let (Some(mut pipe), Some(input)) = (pipe, input) else {
        return;
    };
    tokio::select! {
        // A command may well end without reading all of its input.
        written = pipe.write_all(&input.0) => drop(written),
        () = ended.cancelled() => {}
    }
}

async fn discard(mut pipe: pipe::Receiver) {
    drop(tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await);
}
