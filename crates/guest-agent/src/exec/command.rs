//! From a request to a running process.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use fuse_wire_guest::control::ExecRequest;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::terminal::Side;
use super::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, ExecError};
use crate::cgroup::{Cgroups, Group};
use crate::reaper::{Exit, Reaper};
use crate::sys::{ChildSetup, Program};

/// What every command finds in its environment unless it is told otherwise.
const BASE_ENV: [(&str, &str); 6] = [
    (
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ),
    ("HOME", "/root"),
    ("USER", "root"),
    ("LOGNAME", "root"),
    ("SHELL", "/bin/sh"),
    ("LANG", "C.UTF-8"),
];

const HOME: &str = "/root";

/// Where a command's standard streams lead.
#[derive(Debug)]
pub(super) enum Streams {
    /// To pipes of their own; input to one if there is any.
    Pipes { stdin: bool },
    /// To a terminal, all of them.
    Terminal(Side),
}

/// What came of an attempt to start.
#[derive(Debug)]
pub(super) enum Launched {
    /// It runs.
    Running(Running),
    /// The program cannot be run; what a shell would say.
    Refused { exit_code: i32, reason: String },
}

/// A running command. Dropping it ends it with everything it started, unless it
/// has ended by itself.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) stdin: Option<pipe::Sender>,
    pub(super) stdout: Option<pipe::Receiver>,
    pub(super) stderr: Option<pipe::Receiver>,
    pub(super) exit: oneshot::Receiver<Exit>,
    /// Process id, which is also that of its session and process group.
    pid: Option<Pid>,
    group: Option<Group>,
    cgroups: Option<Arc<Cgroups>>,
}

impl Running {
    /// Ends the command and all its descendants.
    pub(super) fn kill(&self) {
        if let Some(group) = &self.group
            && let Err(error) = group.kill()
        {
            tracing::warn!(%error, "command group not killed");
        }
        if let Some(pid) = self.pid {
            // Usually gone by now.
            rustix::process::kill_process_group(pid, Signal::KILL).ok();
        }
    }

    /// The command has ended by itself: what it started is left alone from now on.
    pub(super) fn ended(&mut self) {
        self.pid = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.pid.is_some() {
            self.kill();
        }
        if let (Some(group), Some(cgroups)) = (self.group.take(), &self.cgroups) {
            cgroups.retire(group);
        }
    }
}

/// Refuses requests that cannot mean anything.
pub(super) fn check(request: &ExecRequest) -> Result<(), ExecError> {
    let invalid = |text: &str| Err(ExecError::Invalid(text.to_owned()));
    match request.cmd.first() {
        None => return invalid("cmd must hold a program and its arguments"),
        Some(program) if program.is_empty() => return invalid("cmd names no program"),
        Some(_) => {}
    }
    if request.timeout_ms == 0 {
        return invalid("timeout_ms must be above 0");
    }
    let names = request
        .env
        .keys()
        .all(|name| !name.is_empty() && !name.contains('='));
    if !names {
        return invalid("env has a name that is empty or holds '='");
    }
    let texts = request
        .cmd
        .iter()
        .chain(request.env.keys())
        .chain(request.env.values());
    if texts.chain(&request.cwd).any(|text| text.contains('\0')) {
        return invalid("cmd, env and cwd must not hold NUL characters");
    }
    Ok(())
}

/// Starts the command of a checked request. Blocks.
pub(super) fn launch(
    request: &ExecRequest,
    streams: &Streams,
    reaper: &Reaper,
    cgroups: Option<Arc<Cgroups>>,
) -> Result<Launched, ExecError> {
    let cwd = working_dir(request.cwd.as_deref())?;
    let group = cgroups
        .as_ref()
        .map(|cgroups| cgroups.command())
        .transpose()
        .map_err(ExecError::Start)?;
    let (program, ends) =
        prepare(request, streams, cwd, group.as_ref()).map_err(ExecError::Start)?;
    let (pid, exit) = match reaper.start_program(&program) {
        Ok(started) => started,
        Err(error) => {
            if let (Some(group), Some(cgroups)) = (group, &cgroups) {
                cgroups.retire(group);
            }
            return refusal(&request.cmd[0], error);
        }
    };
    // From here on dropping `running` cleans up.
    let mut running = Running {
        stdin: None,
        stdout: None,
        stderr: None,
        exit,
        pid: Some(pid),
        group,
        cgroups,
    };
    let reader = |fd: Option<OwnedFd>| {
        fd.map(pipe::Receiver::from_owned_fd)
            .transpose()
            .map_err(ExecError::Start)
    };
    running.stdout = reader(ends.stdout)?;
    running.stderr = reader(ends.stderr)?;
    running.stdin = ends
        .stdin
        .map(pipe::Sender::from_owned_fd)
        .transpose()
        .map_err(ExecError::Start)?;
    Ok(Launched::Running(running))
}

/// The agent's ends of a command's streams.
#[derive(Debug, Default)]
struct Ends {
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

/// The command's ends of its streams, and the agent's.
fn connect(streams: &Streams) -> io::Result<([OwnedFd; 3], Ends)> {
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let stdin = match streams {
        Streams::Terminal(side) => {
            let stdio = [side.descriptor()?, side.descriptor()?, side.descriptor()?];
            return Ok((stdio, Ends::default()));
        }
        Streams::Pipes { stdin } => *stdin,
    };
    let (stdin, feed) = if stdin {
        let (reader, writer) = pipe()?;
        (reader, Some(writer))
    } else {
        (File::open("/dev/null")?.into(), None)
    };
    let (stdout, to_stdout) = pipe()?;
    let (stderr, to_stderr) = pipe()?;
    let ends = Ends {
        stdin: feed,
        stdout: Some(stdout),
        stderr: Some(stderr),
    };
    Ok(([stdin, to_stdout, to_stderr], ends))
}

fn prepare(
    request: &ExecRequest,
    streams: &Streams,
    cwd: &Path,
    group: Option<&Group>,
) -> io::Result<(Program, Ends)> {
    let (stdio, ends) = connect(streams)?;
    let cgroup = group.map(Group::procs).transpose()?;
    // PID 1 is protected when memory runs out; what it starts must not be.
    let oom_score_adj = cgroup.is_some().then_some("0");
    let own = request.env.iter().map(|(k, v)| (k.as_str(), v.as_str()));
    let env: BTreeMap<&str, &str> = BASE_ENV.into_iter().chain(own).collect();
    let program = Program {
        files: files(
            &request.cmd[0],
            env.get("PATH").copied().unwrap_or_default(),
        )?,
        args: strings(request.cmd.iter().cloned())?,
        env: strings(env.iter().map(|(name, value)| format!("{name}={value}")))?,
        cwd: CString::new(cwd.as_os_str().as_bytes())?,
        stdio,
        setup: ChildSetup {
            cgroup,
            oom_score_adj,
            terminal: matches!(streams, Streams::Terminal(_)),
        },
    };
    Ok((program, ends))
}

/// Where a program of this name may be.
fn files(name: &str, path: &str) -> io::Result<Vec<CString>> {
    if name.contains('/') {
        return strings([name.to_owned()]);
    }
    let in_dir = |dir: &str| match dir {
        "" => format!("./{name}"),
        dir => format!("{dir}/{name}"),
    };
    strings(path.split(':').map(in_dir))
}

fn strings(texts: impl IntoIterator<Item = String>) -> io::Result<Vec<CString>> {
    let texts = texts.into_iter().map(CString::new);
    Ok(texts.collect::<Result<_, _>>()?)
}

fn working_dir(asked: Option<&str>) -> Result<&Path, ExecError> {
    let Some(asked) = asked else {
        let home = Path::new(HOME);
        return Ok(if home.is_dir() { home } else { Path::new("/") });
    };
    let dir = Path::new(asked);
    if !dir.is_absolute() {
        return Err(ExecError::Invalid(format!(
            "cwd {asked} is not an absolute path"
        )));
    }
    if !dir.is_dir() {
        return Err(ExecError::Invalid(format!(
            "cwd {asked} is not a directory in the guest"
        )));
    }
    Ok(dir)
}

/// Tells a program that cannot be run from a guest that cannot run any.
fn refusal(program: &str, error: io::Error) -> Result<Launched, ExecError> {
    let (exit_code, reason) = match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => (
            EXIT_NOT_FOUND,
            format!("{program}: no such file or directory\n"),
        ),
        io::ErrorKind::NotFound => (EXIT_NOT_FOUND, format!("{program}: command not found\n")),
        io::ErrorKind::PermissionDenied => (
            EXIT_NOT_EXECUTABLE,
            format!("{program}: permission denied\n"),
        ),
        io::ErrorKind::ArgumentListTooLong => (
            EXIT_NOT_EXECUTABLE,
            format!("{program}: argument list too long\n"),
        ),
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            (EXIT_NOT_EXECUTABLE, format!("{program}: not a program\n"))
        }
        _ if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => (
            EXIT_NOT_EXECUTABLE,
            format!("{program}: cannot execute: not a program\n"),
        ),
        _ => return Err(ExecError::Start(error)),
    };
    Ok(Launched::Refused { exit_code, reason })
}
