//! `fused drain`: asks everything that runs for users to stop, and says whether it did.
//!
//! Containers of services stop first, in the order of their needs ([`services::stop`]). What else was started for
//! users is found by its groups: commands, attached shells, and whatever they
//! left in the background. The group that this process is in is left alone, or it would end its own
//! caller. Nothing is killed; that is for whoever destroys the guest.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::services;

/// Of the time that there is, what services may take.
const SERVICES_PART: Duration = Duration::from_secs(20);

const USERS: &str = "/sys/fs/cgroup/fuse.user";

/// Asks everything that was started in this guest to stop.
#[derive(Debug, Parser)]
#[command(name = "fused drain")]
struct Options {
    /// Seconds to wait for it.
    #[arg(long, default_value_t = 25)]
    timeout: u64,
}

/// Runs the subcommand from this process's command line: 0 if all is gone, 1 if something is left,
/// 2 if it could not be asked.
pub(crate) fn run() -> ExitCode {
    let words = std::env::args_os().skip(1);
    let options = Options::parse_from(words);
    let begun = Instant::now();
    let deadline = begun + Duration::from_secs(options.timeout);
    let of_services = begun + SERVICES_PART.min(Duration::from_secs(options.timeout));
    for failed in services::stop(of_services) {
        say(&format!("did not stop as it should: {failed}"));
    }
    match drain(Path::new(USERS), deadline) {
        Ok(left) if left.is_empty() => ExitCode::SUCCESS,
        Ok(left) => {
            let names: Vec<_> = left.values().map(|stat| stat.name.as_str()).collect();
            say(&format!("still running: {}", names.join(", ")));
            ExitCode::from(1)
        }
        Err(error) => {
            say(&format!("cannot find what runs: {error}"));
            ExitCode::from(2)
        }
    }
}

fn say(text: &str) {
    // Nobody is left to be told if this fails.
    let _closed = writeln!(std::io::stderr(), "fused drain: {text}");
}

/// By pid.
type Running = BTreeMap<i32, Stat>;

/// Asks and waits; what is left is returned.
fn drain(users: &Path, deadline: Instant) -> std::io::Result<Running> {
    let own = own_group();
    let mut asked = BTreeMap::new();
    loop {
        let running = running(users, own.as_deref())?;
        if running.is_empty() || Instant::now() >= deadline {
            return Ok(running);
        }
        let mut handles = Vec::new();
        for (pid, stat) in &running {
            // Gone meanwhile, or about to be looked at again.
            let Some(handle) = Pid::from_raw(*pid).and_then(open) else {
                continue;
            };
            // Those that came since, children of an orderly end among them, are asked as well.
            if asked.insert(*pid, stat.name.clone()).as_ref() != Some(&stat.name) {
                ask(stat, &handle);
            }
            handles.push(handle);
        }
        // With none, all have ended since they were listed.
        if !handles.is_empty() {
            wait_for_one(&handles, deadline);
        }
    }
}

fn open(pid: Pid) -> Option<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn ask(stat: &Stat, process: &OwnedFd) {
    let mut signals = vec![Signal::TERM];
    if stat.terminal {
        // Shells with a terminal ignore the first.
        signals.push(Signal::HUP);
    }
    // A stopped process does not notice signals.
    signals.push(Signal::CONT);
    for signal in signals {
        // It may have gone already.
        let _gone = pidfd_send_signal(process, signal);
    }
}

/// What `/proc/<pid>/stat` says of a process that has not ended.
struct Stat {
    name: String,
    terminal: bool,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything.
    let (before, after) = text.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace();
    let state = fields.next()?;
    // Ended and not collected yet.
    if matches!(state, "Z" | "X") {
        return None;
    }
    Some(Stat {
        name: before.split_once('(')?.1.to_owned(),
        terminal: fields.nth(3)? != "0",
    })
}

/// Returns when one of them has ended, or at the deadline.
fn wait_for_one(handles: &[OwnedFd], deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    let mut fds: Vec<_> = handles
        .iter()
        .map(|handle| PollFd::new(handle, PollFlags::IN))
        .collect();
    // Interrupted or not, the caller looks again.
    let _looks_again = poll(&mut fds, Some(&limit));
}

/// Everything in the groups below `users` but `own`.
fn running(users: &Path, own: Option<&Path>) -> std::io::Result<Running> {
    let mut found = Running::new();
    for entry in fs::read_dir(users)?.flatten() {
        let group = entry.path();
        if own == Some(group.as_path()) {
            continue;
        }
        // Not a group, or one that was just removed.
        let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines().filter_map(|line| line.parse().ok()) {
            if let Some(stat) = stat(pid) {
                found.insert(pid, stat);
            }
        }
    }
    Ok(found)
}

/// The group of this process.
fn own_group() -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new("/sys/fs/cgroup").join(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn group(dir: &Path, name: &str, script: &str) -> Child {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let group = dir.join(name);
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.procs"), format!("{}\n", child.id())).unwrap();
        child
    }

    #[test]
    fn what_stops_is_gone_and_what_does_not_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut polite = group(dir.path(), "exec-1", "exec sleep 600");
        // The reaper of another test may be faster.
        let reap = std::thread::spawn(move || drop(polite.wait()));
        let left = drain(dir.path(), Instant::now() + Duration::from_secs(20)).unwrap();
        assert!(left.is_empty());
        reap.join().unwrap();
        let script = "trap '' TERM HUP; while :; do sleep 1; done";
        let mut stubborn = group(dir.path(), "exec-2", script);
        // Until it has set its traps, it would still stop.
        let blocked = || {
            let status = fs::read_to_string(format!("/proc/{}/status", stubborn.id())).unwrap();
            let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
            u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap() & (1 << 14) != 0
        };
        while !blocked() {
            std::thread::yield_now();
        }
        let left = drain(dir.path(), Instant::now() + Duration::from_millis(300)).unwrap();
        let names: Vec<_> = left.values().map(|stat| stat.name.as_str()).collect();
        assert_eq!(names, ["sh"]);
        stubborn.kill().unwrap();
        drop(stubborn.wait());
    }
}
