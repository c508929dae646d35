//! Runs the `fuse` program with a home directory of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::bins::Bins;

/// Longest run of one command.
const DEADLINE: Duration = Duration::from_secs(180);

/// A CLI user: own `HOME` and XDG directories, no terminal, no colour.
#[derive(Debug, Clone)]
pub struct Fuse {
    program: PathBuf,
    home: PathBuf,
    env: Vec<(String, String)>,
    deadline: Duration,
}

/// What one invocation did.
#[derive(Debug, Clone)]
pub struct Run {
    /// Exit status, -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    what: String,
}

impl Fuse {
    /// A user whose home is `home` (created).
    ///
    /// # Errors
    /// When the program is not built or the directory cannot be made.
    pub fn new(bins: &Bins, home: &Path) -> Result<Self> {
        std::fs::create_dir_all(home).with_context(|| format!("create {}", home.display()))?;
        Ok(Self {
            program: bins.path("fuse")?,
            home: home.to_owned(),
            env: Vec::new(),
            deadline: DEADLINE,
        })
    }

    /// The same user with more environment.
    #[must_use]
    pub fn with_env<K: Into<String>, V: Into<String>>(
        mut self,
        env: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.env
            .extend(env.into_iter().map(|(k, v)| (k.into(), v.into())));
        self
    }

    /// The same user with more patience than the usual three minutes for a command.
    #[must_use]
    pub fn patient(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Home directory of this user.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Runs `fuse args` in the home directory, whatever it answers.
    ///
    /// # Errors
    /// When it cannot be started or does not end within its deadline.
    pub async fn run(&self, args: &[&str]) -> Result<Run> {
        self.run_in(&self.home, args).await
    }

    /// Runs `fuse args`, which must succeed.
    ///
    /// # Errors
    /// As [`Self::run`], and on any status but 0.
    pub async fn ok(&self, args: &[&str]) -> Result<Run> {
        self.run(args).await?.expect(0)
    }

    /// Runs `fuse args`, which must fail with status 1.
    ///
    /// # Errors
    /// As [`Self::run`], and on any status but 1.
    pub async fn fails(&self, args: &[&str]) -> Result<Run> {
        self.run(args).await?.expect(1)
    }

    /// `fuse args` before it is started: no input, its output is the caller's to read, and it ends
    /// with its handle.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .current_dir(&self.home)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("XDG_CONFIG_HOME", self.home.join(".config"))
            .env("XDG_CACHE_HOME", self.home.join(".cache"))
            .env("NO_COLOR", "1")
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// As [`Self::run`], in directory `dir`.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn run_in(&self, dir: &Path, args: &[&str]) -> Result<Run> {
        let what = format!("fuse {}", args.join(" "));
        let child = self.command(args).current_dir(dir).spawn();
        let child = child.with_context(|| format!("start {}", self.program.display()))?;
        let deadline = self.deadline;
        let output = tokio::time::timeout(deadline, child.wait_with_output())
            .await
            .with_context(|| format!("`{what}` did not end within {deadline:?}"))??;
        Ok(Run {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            what,
        })
    }
}

impl Run {
    /// Fails, with both streams, unless it exited 0.
    ///
    /// # Errors
    /// On any other status.
    pub fn ok(self) -> Result<Self> {
        self.expect(0)
    }

    /// Fails, with both streams, unless it exited with `code`.
    ///
    /// # Errors
    /// On any other status.
    pub fn expect(self, code: i32) -> Result<Self> {
        ensure!(
            self.code == code,
            "`{}` exited {} (expected {code})\nstdout: {}\nstderr: {}",
            self.what,
            self.code,
            self.stdout,
            self.stderr
        );
        Ok(self)
    }

    /// Standard output as JSON.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout)
            .with_context(|| format!("`{}`: not JSON: {}", self.what, self.stdout))
    }

    /// Fails unless stderr contains `text`.
    ///
    /// # Errors
    /// When it does not.
    pub fn says(&self, text: &str) -> Result<()> {
        ensure!(
            self.stderr.contains(text),
            "`{}` does not say {text:?}:\n{}",
            self.what,
            self.stderr
        );
        Ok(())
    }
}
