//! One `fc-emulator` process with a directory of its own.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};

use crate::http::{self, Answer, LIMIT};

/// A running emulator. Killed when dropped.
pub(crate) struct Emulator {
    child: Child,
    dir: PathBuf,
}

/// The program, not yet started.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fc-emulator"));
    command.stdin(Stdio::null());
    command
}

impl Emulator {
    /// Starts the program with its API socket and log in `dir`.
    pub(crate) fn start(dir: &Path) -> Self {
        Self::start_with(dir, program().args(["--id", "test-1"]))
    }

    /// The same for a command that has its further arguments already. Output
    /// goes to `fc.log`.
    pub(crate) fn start_with(dir: &Path, command: &mut Command) -> Self {
        let emulator = Self::spawn(dir, command);
        // It exists once it is bound; there is no event to wait for from outside.
        let end = Instant::now() + LIMIT;
        while UnixStream::connect(emulator.socket()).is_err() {
            assert!(Instant::now() < end, "no API socket: {}", emulator.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        emulator
    }

    /// The same without waiting for the API socket.
    pub(crate) fn spawn(dir: &Path, command: &mut Command) -> Self {
        let log = File::create(dir.join("fc.log")).unwrap();
        let child = command
            .arg("--api-sock")
            .arg(dir.join("api.sock"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            child,
            dir: dir.to_owned(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("api.sock")
    }

    /// Log and console so far.
    pub(crate) fn log(&self) -> String {
        let bytes = std::fs::read(self.dir.join("fc.log")).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        let stream = UnixStream::connect(self.socket()).unwrap();
        http::call(stream, method, path, body)
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.call("GET", path, "");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// A PUT or PATCH that must succeed.
    pub(crate) fn set(&self, method: &str, path: &str, body: Value) {
        let answer = self.call(method, path, &body.to_string());
        assert_eq!(answer.status, 204, "{path}: {answer:?}\n{}", self.log());
        assert_eq!(answer.body, "");
    }

    /// A PUT or PATCH that must fail; the complaint.
    pub(crate) fn refused(&self, method: &str, path: &str, body: Value) -> String {
        self.call(method, path, &body.to_string()).fault()
    }

    pub(crate) fn start_instance(&self) {
        self.set("PUT", "/actions", json!({"action_type": "InstanceStart"}));
    }

    /// The QEMU process that runs below.
    pub(crate) fn qemu(&self) -> Process {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let children: Vec<_> = children.split_whitespace().collect();
        assert_eq!(children.len(), 1, "{children:?}");
        Process::open(children[0].parse().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the process, which must come by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        Process::open(Pid::from_child(&self.child).as_raw_nonzero().get()).ends();
        self.child.wait().unwrap()
    }

    /// Waits for an end with `code`, and looks for what must not be left.
    pub(crate) fn ends_with(&mut self, code: i32) {
        let status = self.wait();
        assert_eq!(
            status.code(),
            Some(code),
            "{:?}\n{}",
            status.signal(),
            self.log()
        );
        assert!(!self.socket().exists(), "the API socket is left");
        assert!(
            !self.dir.join("v.sock").exists(),
            "the vsock socket is left"
        );
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Somebody else's child, held so that its number is not another's.
pub(crate) struct Process {
    pid: i32,
    fd: std::os::fd::OwnedFd,
}

impl Process {
    fn open(pid: i32) -> Self {
        let id = Pid::from_raw(pid).unwrap();
        let fd = pidfd_open(id, PidfdFlags::empty()).unwrap();
        Self { pid, fd }
    }

    pub(crate) fn kill(&self) {
        kill_process(Pid::from_raw(self.pid).unwrap(), Signal::KILL).unwrap();
    }

    /// Waits until it has ended.
    pub(crate) fn ends(&self) {
        let limit = Timespec {
            tv_sec: LIMIT.as_secs().try_into().unwrap(),
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&limit)).unwrap();
        assert_eq!(ready, 1, "process {} does not end", self.pid);
    }
}
