//! Runs the program as a user would: a home of its own, no terminal, no colour.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A user with an empty home directory.
pub(crate) struct User {
    home: TempDir,
    environment: Vec<(String, String)>,
}

/// What one invocation did.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl User {
    pub(crate) fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            environment: Vec::new(),
        }
    }

    /// A user who is connected to an orchestrator.
    pub(crate) fn connected(url: &str, token: &str) -> Self {
        let user = Self::new();
        user.run(&[
            "connect",
            url,
            "--token",
            token,
            "--name",
            "test",
            "--no-verify",
        ])
        .ok();
        user
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn config(&self) -> String {
        std::fs::read_to_string(self.home().join(".config/fuse/config.yaml")).unwrap_or_default()
    }

    /// Writes a file below the home directory.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.home().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Reads a file below the home directory; empty when there is none.
    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.home().join(path)).unwrap_or_default()
    }

    /// Registers a host, which has a token from one of these flags.
    pub(crate) fn register(&self, flag: &str, value: &str) -> Run {
        let host = ["host", "register", "a", "--url", "http://10.0.0.5:8090"];
        self.run(&[&host[..], &["--max-vms", "1", flag, value]].concat())
    }

    /// Runs it with this on standard input.
    pub(crate) fn run_with_input(&self, args: &[&str], input: &str) -> Run {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, input.as_bytes()).unwrap();
        drop(stdin);
        Run::of(&child.wait_with_output().unwrap())
    }

    /// Runs it on a terminal of its own, where both streams arrive mixed; `None` without `script`.
    pub(crate) fn run_on_terminal(&self, args: &[&str]) -> Option<Run> {
        self.on_terminal(args).output().ok().as_ref().map(Run::of)
    }

    /// The same, to be started; it cannot be without `script`.
    pub(crate) fn on_terminal(&self, args: &[&str]) -> Command {
        let quoted: Vec<_> = std::iter::once(env!("CARGO_BIN_EXE_fuse"))
            .chain(args.iter().copied())
            .map(|word| format!("'{word}'"))
            .collect();
        let mut command = self.command(&[]);
        let environment: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        command = Command::new("script");
        command
            .args(["-q", "-e", "-c", &quoted.join(" "), "/dev/null"])
            .current_dir(self.home())
            .env_clear()
            .envs(environment)
            .env("TERM", "xterm")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fuse"));
        command
            .args(args)
            .current_dir(self.home())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home())
            .env("TZ", "UTC")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs it until it has said this on standard error, and then interrupts it.
    pub(crate) fn interrupted(&self, args: &[&str], at: &str) -> Run {
        let mut child = self
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains(at) {
            let read = stderr.read_line(&mut said).unwrap();
            assert!(read > 0, "it ended: {said}");
        }
        let pid = child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
        assert!(sent.success());
        stderr.read_to_string(&mut said).unwrap();
        Run {
            stderr: said,
            ..Run::of(&child.wait_with_output().unwrap())
        }
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::of(&self.command(args).output().unwrap())
    }
}

impl Run {
    fn of(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout: {}\nstderr: {}",
            self.stdout, self.stderr
        );
        self
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.exits(0)
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(
            self.stderr.contains(text),
            "does not say {text:?}: {}",
            self.stderr
        );
        self
    }

    #[track_caller]
    pub(crate) fn prints(self, text: &str) -> Self {
        assert_eq!(self.stdout, text);
        self
    }

    /// The object on stdout.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The error object on stderr.
    #[track_caller]
    pub(crate) fn error(&self) -> serde_json::Value {
        let line = self.stderr.lines().last().unwrap_or_default();
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        value["error"].clone()
    }
}
