//! Collects every child of this process, and tells those who wait.
//!
//! PID 1 inherits orphans, so it must wait for *any* child; a wait for one
//! child elsewhere would race with that and lose exit statuses. All children of
//! the guest agent are therefore started here and nobody else waits for one:
//! a `Child`'s own `wait` must not be called. The lock is held across fork and
//! exec, so a child is known before its end can be collected.

use std::collections::HashMap;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, WaitStatus};
use tokio::sync::{Notify, oneshot};

use crate::sys::Program;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// By itself, with this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    fn from_status(status: WaitStatus) -> Option<Self> {
        let signal = || status.terminating_signal().map(Self::Signal);
        status.exit_status().map(Self::Code).or_else(signal)
    }

    /// Whether the child ended by itself and reported success.
    pub(crate) fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A started child and its end.
#[derive(Debug)]
pub(crate) struct Started {
    /// Its pipes and process id; its `wait` must not be called.
    pub(crate) child: Child,
    /// Resolves when it ended.
    pub(crate) exit: oneshot::Receiver<Exit>,
}

/// See the module. One per process.
#[derive(Debug)]
pub(crate) struct Reaper {
    state: Mutex<State>,
    started: Condvar,
    orphans: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<i32, oneshot::Sender<Exit>>,
    /// Counts starts, so that the thread notices one between its checks.
    starts: u64,
}

impl Reaper {
    /// Starts the thread that collects children. To be called once.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        let reaper = Self::idle();
        let collector = Arc::clone(&reaper);
        std::thread::Builder::new()
            .name("reaper".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || collector.collect_forever())?;
        Ok(reaper)
    }

    /// One that collects nothing.
    pub(crate) fn idle() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            started: Condvar::new(),
            orphans: Notify::new(),
        })
    }

    /// Starts a child. Blocks until it runs the program or failed to.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Started> {
        let start = || {
            let child = command.spawn()?;
            Ok((child.id().cast_signed(), child))
        };
        let (child, exit) = self.watch(start)?;
        Ok(Started { child, exit })
    }

    /// The same for a child that is started by other means.
    ///
    /// # Errors
    /// As [`Program::start`].
    pub(crate) fn start_program(
        &self,
        program: &Program,
    ) -> io::Result<(Pid, oneshot::Receiver<Exit>)> {
        self.watch(|| program.start().map(|pid| (Pid::as_raw(Some(pid)), pid)))
    }

    fn watch<T>(
        &self,
        start: impl FnOnce() -> io::Result<(i32, T)>,
    ) -> io::Result<(T, oneshot::Receiver<Exit>)> {
        let mut state = self.lock();
        let (pid, child) = start()?;
        let (sender, exit) = oneshot::channel();
        state.waiting.insert(pid, sender);
        state.starts += 1;
        drop(state);
        self.started.notify_one();
        Ok((child, exit))
    }

    /// Resolves when a process ended that was started by somebody else.
    pub(crate) async fn orphan_ended(&self) {
        self.orphans.notified().await;
    }

    fn collect_forever(&self) {
        loop {
            let starts = self.lock().starts;
            // Only look: the status stays until nobody is in the middle of a start.
            let any =
                rustix::process::waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            match any {
                Ok(_) => self.collect(),
                Err(Errno::CHILD) => {
                    let no_start = |state: &mut State| state.starts == starts;
                    // Poisoning means that a start panicked; its state is still whole.
                    drop(self.started.wait_while(self.lock(), no_start));
                }
                Err(_) => {}
            }
        }
    }

    fn collect(&self) {
        let mut state = self.lock();
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let Some(exit) = Exit::from_status(status) else {
                continue;
            };
            match state.waiting.remove(&Pid::as_raw(Some(pid))) {
                // Whoever started it may have lost interest.
                Some(waiting) => drop(waiting.send(exit)),
                None => self.orphans.notify_one(),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
