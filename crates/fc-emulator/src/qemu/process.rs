//! QEMU's process: started, spoken to, and its end told apart.
//!
//! It never outlives the emulator: the kernel kills it when the emulator dies,
//! and dropping [`Qemu`] kills it too.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use fuse_qemu::{Qmp, QmpError, Shutdown};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinSet;

use crate::sys;

/// Overrides where QEMU is found.
const PATH_VARIABLE: &str = "FC_EMULATOR_QEMU";
const PROGRAM: &str = "qemu-system-x86_64";

/// Lines of QEMU's complaints that are kept for error texts.
const KEPT_LINES: usize = 8;

/// QEMU did not come up.
#[derive(Debug, Error)]
pub(crate) enum QemuError {
    #[error(
        "{} was not found; install the Debian package qemu-system-x86 \
         or set {PATH_VARIABLE} to the path of QEMU", program.display()
    )]
    Missing { program: PathBuf },
    #[error("{} could not be started", program.display())]
    Spawn {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("a channel to QEMU could not be made")]
    Channel(#[source] io::Error),
    #[error("QEMU ended at once ({status}): {complaint}")]
    Ended {
        status: ExitStatus,
        complaint: String,
    },
    #[error("QEMU's monitor failed")]
    Monitor(#[source] QmpError),
}

/// How QEMU ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The guest powered off or rebooted.
    Guest { reason: String },
    /// Anything else, which nobody asked for.
    Died { what: String },
}

/// A QEMU whose monitor answers.
#[derive(Debug)]
pub(crate) struct Qemu {
    child: Child,
    pub(crate) qmp: Qmp,
    complaints: Complaints,
    /// Holds the task that reads the complaints.
    stderr: JoinSet<()>,
}

/// A connected pair: the emulator's end and QEMU's.
pub(crate) fn channel() -> Result<(UnixStream, OwnedFd), QemuError> {
    let pair = || -> io::Result<_> {
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        near.set_nonblocking(true)?;
        Ok((UnixStream::from_std(near)?, far.into()))
    };
    pair().map_err(QemuError::Channel)
}

impl Qemu {
    /// Starts QEMU with `arguments` and `inherited` descriptors, and greets its
    /// monitor at the other end of `monitor`. Standard input and output are the
    /// emulator's own.
    ///
    /// # Errors
    /// It is not installed or does not accept the arguments.
    pub(crate) async fn start(
        arguments: Vec<OsString>,
        monitor: UnixStream,
        inherited: Vec<OwnedFd>,
    ) -> Result<Self, QemuError> {
        let program = std::env::var_os(PATH_VARIABLE).map_or_else(|| PROGRAM.into(), PathBuf::from);
        tracing::debug!(program = %program.display(), ?arguments, "starting QEMU");
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        sys::bind_child(
            &mut command,
            inherited.iter().map(AsRawFd::as_raw_fd).collect(),
        );
        let mut child = command.spawn().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => QemuError::Missing {
                program: program.clone(),
            },
            _ => QemuError::Spawn {
                program: program.clone(),
                source,
            },
        })?;
        // Only QEMU holds them from here on, so that its end closes them.
        drop(inherited);
        let complaints = Complaints::default();
        let mut stderr = JoinSet::new();
        if let Some(pipe) = child.stderr.take() {
            stderr.spawn(complaints.clone().collect(pipe));
        }
        match Qmp::connect(monitor).await {
            Ok(qmp) => Ok(Self {
                child,
                qmp,
                complaints,
                stderr,
            }),
            Err(error) => Err(Self::failed(child, stderr, &complaints, error).await),
        }
    }

    /// Why a QEMU whose monitor closed ended.
    async fn failed(
        mut child: Child,
        stderr: JoinSet<()>,
        complaints: &Complaints,
        error: QmpError,
    ) -> QemuError {
        // It closed its monitor, so it is about to end; if it does not, it is ended.
        if let Err(error) = child.start_kill() {
            tracing::debug!(%error, "QEMU was gone already");
        }
        match child.wait().await {
            Ok(status) => {
                stderr.join_all().await;
                let complaint = complaints.text();
                if complaint.is_empty() {
                    return QemuError::Monitor(error);
                }
                QemuError::Ended { status, complaint }
            }
            Err(_) => QemuError::Monitor(error),
        }
    }

    /// Waits for the end of the process.
    ///
    /// # Cancel safety
    /// Safe: it can be asked again.
    pub(crate) async fn wait(&mut self) -> Exit {
        let status = match self.child.wait().await {
            Ok(status) => status,
            Err(error) => {
                return Exit::Died {
                    what: format!("QEMU cannot be waited for: {error}"),
                };
            }
        };
        while self.stderr.join_next().await.is_some() {}
        let shutdown = self.qmp.drain().await.shutdown;
        classify(status, shutdown, &self.complaints.text())
    }
}

/// QEMU ends with success when the guest is done, but also when the host
/// asks it to by a signal; only the monitor's word tells.
fn classify(status: ExitStatus, shutdown: Option<Shutdown>, complaint: &str) -> Exit {
    match shutdown {
        Some(shutdown) if shutdown.by_guest && status.success() => Exit::Guest {
            reason: shutdown.reason,
        },
        other => {
            let reason = other.map(|shutdown| shutdown.reason).unwrap_or_default();
            let parts = [
                Some(format!("QEMU ended ({status})")),
                (!reason.is_empty()).then_some(reason),
                (!complaint.is_empty()).then(|| complaint.to_owned()),
            ];
            let what: Vec<_> = parts.into_iter().flatten().collect();
            Exit::Died {
                what: what.join(": "),
            }
        }
    }
}

/// QEMU's last words on standard error; all of them also go to the log.
#[derive(Clone, Debug, Default)]
struct Complaints(Arc<Mutex<VecDeque<String>>>);

impl Complaints {
    async fn collect(self, pipe: ChildStderr) {
        let mut lines = BufReader::new(pipe).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            tracing::warn!(line, "QEMU");
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == KEPT_LINES {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    }

    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn shutdown(by_guest: bool, reason: &str) -> Option<Shutdown> {
        Some(Shutdown {
            by_guest,
            reason: reason.to_owned(),
        })
    }

    #[test]
    fn only_the_guests_own_end_is_a_good_one() {
        let ok = ExitStatus::from_raw(0);
        assert_eq!(
            classify(ok, shutdown(true, "guest-reset"), ""),
            Exit::Guest {
                reason: "guest-reset".into()
            }
        );
        assert!(matches!(
            classify(ok, shutdown(false, "host-signal"), ""),
            Exit::Died { .. }
        ));
        assert!(matches!(classify(ok, None, ""), Exit::Died { .. }));
        let killed = ExitStatus::from_raw(9);
        let Exit::Died { what } = classify(killed, None, "oops") else {
            panic!("a killed QEMU did not end well");
        };
        assert!(
            what.contains("signal: 9") && what.ends_with(": oops"),
            "{what}"
        );
    }
}
