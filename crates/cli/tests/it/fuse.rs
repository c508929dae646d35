//! Runs the program as a user would: a home of its own, no terminal, no colour.

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

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(args).output().unwrap();
        Run {
            code: status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }
}

impl Run {
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
