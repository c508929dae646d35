//! Background programs: started in a session of their own, remembered by process id and start time.
//!
//! Invariant: a recorded process is only ever signalled through a handle that was opened before its
//! start time was compared, so a recycled process id is never hit.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::error::file_error;
use super::{Error, Layout, record};

/// How much of a log is shown when a program fails.
const TAIL: u64 = 2000;
/// Longest log that is carried over to the next start; beyond it the old one is kept as `.1`.
const LONGEST_LOG: u64 = 16 * 1024 * 1024;

/// One background program of a stack.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    /// Name of the program.
    pub(crate) name: &'static str,
    pid_file: PathBuf,
    /// Where its output goes.
    pub(crate) log: PathBuf,
}

/// What the pid file holds.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: i32,
    /// Ticks since boot, as the kernel counts them.
    start_time: u64,
    /// Start times of different boots cannot be compared.
    boot_id: String,
}

/// A process that runs, held so that nothing else can take its place.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its id.
    pub(crate) pid: i32,
    handle: OwnedFd,
}

impl Daemon {
    /// The daemon of that name.
    pub(crate) fn new(layout: &Layout, name: &'static str) -> Self {
        Self {
            name,
            pid_file: layout.file(&format!("{name}.pid")),
            log: layout.file(&format!("{name}.log")),
        }
    }

    /// The process, if it runs.
    pub(crate) fn running(&self) -> Option<Process> {
        let record: Record = record::load(&self.pid_file)?;
        let handle = pidfd_open(Pid::from_raw(record.pid)?, PidfdFlags::empty()).ok()?;
        let same = record.boot_id == boot_id() && start_time(record.pid) == Some(record.start_time);
        let process = Process {
            pid: record.pid,
            handle,
        };
        (same && !process.has_ended(Duration::ZERO)).then_some(process)
    }

    /// Starts the program with these variables on top of this process's own environment. `unset`
    /// are variables that it must not see.
    ///
    /// # Errors
    /// When it cannot be started or recorded.
    pub(crate) fn start(
        &self,
        program: &Path,
        dir: &Path,
        variables: &[(&'static str, OsString)],
        unset: &[&str],
    ) -> Result<Process, Error> {
        self.rotate_log()?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            // The directory is closed to others; what root's programs log their user must be able to read.
            .mode(0o644)
            .open(&self.log)
            .map_err(file_error("open", &self.log))?;
        let second = log.try_clone().map_err(file_error("open", &self.log))?;
        let failed = |source| Error::Start {
            program: program.to_owned(),
            source,
        };
        let own = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(own);
        // This program again, which leaves our session and then becomes the daemon.
        command.args(["local", "exec"]).arg(program);
        for name in unset {
            command.env_remove(name);
        }
        let child = command
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second)
            .spawn()
            .map_err(failed)?;
        let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
        let start_time = start_time(pid).unwrap_or_default();
        record::save(
            &self.pid_file,
            &Record {
                pid,
                start_time,
                boot_id: boot_id(),
            },
        )?;
        let handle = Pid::from_raw(pid)
            .ok_or(io::Error::from(io::ErrorKind::NotFound))
            .and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?))
            .map_err(failed)?;
        Ok(Process { pid, handle })
    }

    /// Stops the program: asks, waits, and ends it if it does not go. False if it did not run.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub(crate) fn stop(&self, grace: Duration) -> Result<bool, Error> {
        let Some(process) = self.running() else {
            self.forget();
            return Ok(false);
        };
        let failed = |source| Error::Stop {
            name: self.name,
            pid: process.pid,
            source,
        };
        process.signal(Signal::TERM).map_err(failed)?;
        if !process.has_ended(grace) {
            process.signal(Signal::KILL).map_err(failed)?;
            process.has_ended(grace);
        }
        self.forget();
        Ok(true)
    }

    fn forget(&self) {
        fs::remove_file(&self.pid_file).ok();
    }

    /// The end of the log.
    pub(crate) fn tail(&self) -> String {
        let read = || {
            let mut file = fs::File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(bytes)
        };
        let bytes = read().unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    fn rotate_log(&self) -> Result<(), Error> {
        if fs::metadata(&self.log).is_ok_and(|meta| meta.len() > LONGEST_LOG) {
            let old = self.log.with_extension("log.1");
            fs::rename(&self.log, old).map_err(file_error("rotate", &self.log))?;
        }
        Ok(())
    }
}

impl Process {
    fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            // It ended by itself in the meantime.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the end, at most that long; true once it is reached.
    pub(crate) fn has_ended(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).ok();
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        matches!(poll(&mut fds, limit.as_ref()), Ok(ready) if ready > 0)
    }
}

/// Leaves the session of the terminal and becomes another program.
///
/// # Errors
/// Only if it cannot; otherwise this does not return.
pub(crate) fn become_daemon(program: &Path) -> Error {
    use std::os::unix::process::CommandExt as _;
    // Fails only for the leader of a process group, which is what we want to become.
    rustix::process::setsid().ok();
    let source = Command::new(program).exec();
    Error::Start {
        program: program.to_owned(),
        source,
    }
}

/// Start time of a process in ticks since boot: field 22 of its `stat`, counted after the name,
/// which may itself contain blanks and parentheses. A process that has ended but was not reaped yet
/// has none.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if *fields.first()? == "Z" {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// Identity of this boot of the machine.
pub(crate) fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(dir: &Path) -> Daemon {
        let layout = Layout {
            root: dir.to_owned(),
            programs: dir.to_owned(),
            image: dir.to_owned(),
        };
        Daemon::new(&layout, "sleeper")
    }

    fn record(daemon: &Daemon, pid: i32, start_time: u64, boot_id: String) {
        record::save(
            &daemon.pid_file,
            &Record {
                pid,
                start_time,
                boot_id,
            },
        )
        .unwrap();
    }

    #[test]
    fn only_the_recorded_process_counts_as_running() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = daemon(dir.path());
        assert!(daemon.running().is_none());
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let started = start_time(pid).unwrap();

        record(&daemon, pid, started, boot_id());
        assert_eq!(daemon.running().unwrap().pid, pid);
        // The id was recycled, or the machine booted again.
        record(&daemon, pid, started + 1, boot_id());
        assert!(daemon.running().is_none());
        record(&daemon, pid, started, "another boot".into());
        assert!(daemon.running().is_none());
        assert!(!daemon.stop(Duration::ZERO).unwrap());

        record(&daemon, pid, started, boot_id());
        assert!(daemon.stop(Duration::from_secs(10)).unwrap());
        child.wait().unwrap();
        assert!(daemon.running().is_none());
        assert!(!daemon.pid_file.exists());
    }

    #[test]
    fn the_tail_of_a_log_is_short() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = daemon(dir.path());
        assert_eq!(daemon.tail(), "");
        fs::write(&daemon.log, format!("{}\nthe reason\n", "x".repeat(5000))).unwrap();
        let tail = daemon.tail();
        assert!(
            tail.len() < 2001 && tail.ends_with("the reason"),
            "{}",
            tail.len()
        );
    }
}
