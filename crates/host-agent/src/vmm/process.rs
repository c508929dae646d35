//! Processes that outlive the agent.
//!
//! A process is named by its pid and its start time, so that a reused pid is never taken for it.
//! Watching and signalling go through a pidfd, which cannot point at another process either. A VMM
//! leads a process group of its own; stopping it kills the group, helpers included.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

use crate::cgroup::Group;
use crate::sys;

/// How long a killed process may take to be gone.
pub const KILL_LIMIT: Duration = Duration::from_secs(10);
/// What of the log is shown in errors, in bytes.
const LOG_TAIL: u64 = 1024;
/// Variables that a VMM inherits. Everything else stays behind, tokens above all.
const INHERITED: [&str; 5] = ["PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH"];

/// Name of a process that stays true after the pid was reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The pid.
    pub pid: i32,
    /// When it started, in clock ticks since the host booted.
    #[serde(rename = "pid_start")]
    pub start: u64,
}

/// A running process that can be waited for and killed.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    fd: AsyncFd<OwnedFd>,
}

impl Process {
    /// Finds the process, `None` if it is gone. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The kernel does not let it be watched.
    pub fn find(id: ProcessId) -> io::Result<Option<Self>> {
        let Some(pid) = Pid::from_raw(id.pid) else {
            return Ok(None);
        };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        // Only after the fd is open: from here on the pid cannot change hands unnoticed.
        if start_time(id.pid) != Some(id.start) {
            return Ok(None);
        }
        let fd = sys::readable(fd)?;
        Ok(Some(Self { id, fd }))
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Resolves when it has ended, and reaps it if it is a child of the agent.
    ///
    /// # Cancel safety
    /// Safe: the end of a process does not go away.
    pub async fn ended(&self) {
        // A pidfd becomes readable at the end and stays so; an error leaves nothing to wait for.
        let _ready = self.fd.readable().await;
        // Fails for a process adopted after a restart: init reaps that one.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _not_ours = waitid(
            WaitId::PidFd(std::os::fd::AsFd::as_fd(self.fd.get_ref())),
            options,
        );
    }

    /// Kills it and its group, and waits until it is gone.
    ///
    /// # Errors
    /// It is not gone after [`KILL_LIMIT`].
    pub async fn kill(&self) -> io::Result<()> {
        if let Some(group) = Pid::from_raw(self.id.pid) {
            // While the leader is not reaped its pid names this group and no other.
            if start_time(self.id.pid) == Some(self.id.start) {
                let _gone = kill_process_group(group, Signal::KILL);
            }
        }
        match pidfd_send_signal(self.fd.get_ref(), Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(e) => return Err(e.into()),
        }
        tokio::time::timeout(KILL_LIMIT, self.ended())
            .await
            .map_err(|_| {
                io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the process does not end after SIGKILL",
                )
            })
    }
}

/// Starts `command` in a session of its own, detached from the agent and in its control group: no
/// input, output appended to `log`, no secrets in its environment.
///
/// # Errors
/// The log cannot be opened, the group not joined or the program not started.
pub fn spawn_detached(command: &mut Command, log: &Path, group: &Group) -> io::Result<ProcessId> {
    // Append mode: the log is cut to size by others while it is being written.
    let out = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)?;
    let keep = |name: &str| {
        INHERITED.contains(&name) || name.starts_with("FC_EMULATOR_") || name.starts_with("RUST_")
    };
    let inherited: Vec<_> = std::env::vars_os()
        .filter(|(name, _)| name.to_str().is_some_and(keep))
        .collect();
    command
        .env_clear()
        .envs(inherited)
        .stdin(Stdio::null())
        .stderr(out.try_clone()?)
        .stdout(out);
    let child = sys::in_own_session(command, group.entrances()?).spawn()?;
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    // It cannot have been reaped yet, so its entry in /proc is there even if it has ended.
    let start = start_time(pid).ok_or_else(|| io::Error::other("no start time in /proc"))?;
    Ok(ProcessId { pid, start })
}

/// When process `pid` started, `None` if there is none.
#[must_use]
pub fn start_time(pid: i32) -> Option<u64> {
    stat_field(pid, 22)
}

/// A numeric field of `/proc/<pid>/stat`, counted from 1 as in proc(5), from the third on.
fn stat_field(pid: i32, number: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold anything, spaces and parentheses included; it ends at the last one.
    let fields = &stat[stat.rfind(')')? + 1..];
    fields
        .split_ascii_whitespace()
        .nth(number.checked_sub(3)?)?
        .parse()
        .ok()
}

/// Session leaders that have `argument` as a whole argument: detached processes of this agent. For
/// what an interrupted bring-up left behind before its pid was written down.
#[must_use]
pub fn with_argument(argument: &OsStr) -> Vec<ProcessId> {
    let wanted = argument.as_encoded_bytes();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let pid: Option<i32> = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        // Somebody's client of the same socket, typed into a shell, leads no session.
        let leads = stat_field(pid, 6) == u64::try_from(pid).ok();
        if leads && line.split(|b| *b == 0).any(|word| word == wanted) {
            found.extend(start_time(pid).map(|start| ProcessId { pid, start }));
        }
    }
    found
}

/// The processes of a session, its leader first.
#[must_use]
pub fn of_session(leader: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let belongs = |pid: &i32| *pid != leader && stat_field(*pid, 6) == u64::try_from(leader).ok();
    std::iter::once(leader)
        .chain(pids.filter(belongs))
        .collect()
}

/// The last lines of a log on one line, without control characters: it holds what a guest printed.
#[must_use]
pub fn log_tail(log: &Path) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut tail = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut tail)?;
        Ok(tail)
    };
    let tail = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&tail);
    let lines = text
        .lines()
        .map(|line| line.replace(|c: char| c.is_control(), " "));
    let lines: Vec<_> = lines.filter(|line| !line.trim().is_empty()).collect();
    let keep = lines.len().saturating_sub(5);
    lines[keep..].join(" | ")
}

/// Cuts a log to its newest part when it is longer than `limit`; the older part is kept as
/// `<log>.1`. Returns whether it did.
///
/// # Errors
/// A file operation fails.
pub fn rotate_log(log: &Path, limit: u64) -> io::Result<bool> {
    if fs::metadata(log)?.len() <= limit {
        return Ok(false);
    }
    // The writer keeps its descriptor, so the file is copied and emptied rather than renamed.
    let old = rotated(log);
    let mut from = File::open(log)?;
    let length = from.metadata()?.len();
    from.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut to = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(old)?;
    io::copy(&mut from.take(limit), &mut to)?;
    OpenOptions::new().write(true).open(log)?.set_len(0)?;
    Ok(true)
}

/// Where the older part of a log goes.
#[must_use]
pub fn rotated(log: &Path) -> PathBuf {
    let mut old = log.as_os_str().to_owned();
    old.push(".1");
    old.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(log: &Path, marker: &Path) -> ProcessId {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo started; sleep 600 & wait"])
            .arg(marker);
        spawn_detached(&mut command, log, &Group::default()).unwrap()
    }

    #[tokio::test]
    async fn a_process_is_found_by_name_and_killed_with_its_group() {
        let dir = tempfile::tempdir().unwrap();
        let marker = dir.path().join("marker");
        let id = sleeper(&dir.path().join("log"), &marker);
        assert_eq!(with_argument(marker.as_os_str()), vec![id]);
        let process = Process::find(id).unwrap().unwrap();
        process.kill().await.unwrap();
        assert!(Process::find(id).unwrap().is_none());
        assert!(with_argument(marker.as_os_str()).is_empty());
    }

    #[tokio::test]
    async fn a_reused_pid_is_not_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let id = sleeper(&dir.path().join("log"), dir.path());
        let other = ProcessId {
            start: id.start + 1,
            ..id
        };
        assert!(Process::find(other).unwrap().is_none());
        Process::find(id).unwrap().unwrap().kill().await.unwrap();
    }

    #[tokio::test]
    async fn a_process_that_ends_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; exit 3"]);
        let id = spawn_detached(&mut command, &log, &Group::default()).unwrap();
        if let Some(process) = Process::find(id).unwrap() {
            process.ended().await;
        }
        assert_eq!(log_tail(&log), "one | two");
    }

    #[test]
    fn a_long_log_keeps_its_newest_part() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("fc.log");
        fs::write(&log, "a".repeat(100) + &"b".repeat(50)).unwrap();
        assert!(rotate_log(&log, 60).unwrap());
        assert_eq!(fs::metadata(&log).unwrap().len(), 0);
        let old = fs::read_to_string(dir.path().join("fc.log.1")).unwrap();
        assert_eq!(old, "a".repeat(10) + &"b".repeat(50));
        assert!(!rotate_log(&log, 60).unwrap());
    }

    #[test]
    fn a_guests_control_characters_stay_out_of_errors() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::write(&log, b"\x1b[31mred\x07\n\n\xff\n").unwrap();
        assert_eq!(log_tail(&log), " [31mred  | \u{fffd}");
    }
}
