//! A program under test as a child process: own environment, log file, kill -9, orderly stop.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

use crate::wait::GiveUp;

/// How long an orderly stop may take before it counts as hung.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// A running child. Dropping it kills it (and only it: guests live on, as they must).
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `program` with exactly `env` (plus `PATH` and `HOME`), appending its output to `log`.
    ///
    /// # Errors
    /// When the log cannot be opened or the program not started.
    pub fn spawn<A: AsRef<OsStr>>(
        name: &str,
        program: &Path,
        args: &[A],
        env: &[(String, String)],
        log: &Path,
    ) -> Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        let child = Command::new(program)
            .args(args)
            .env_clear()
            .envs(
                ["PATH", "HOME", "RUST_LOG", "RUST_BACKTRACE"]
                    .into_iter()
                    .filter_map(|k| Some((k, std::env::var_os(k)?))),
            )
            .envs(env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Process id, or `None` once it has ended and been waited for.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Whether it has ended, and how. Does not wait.
    ///
    /// # Errors
    /// When the state of the child cannot be read.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("state of {}", self.name))
    }

    /// Fails with the end of its log when it has ended.
    ///
    /// # Errors
    /// When it has ended.
    pub fn still_runs(&mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            let text = format!("{} ended with {status}:\n{}", self.name, self.log_tail());
            return Err(GiveUp(text).into());
        }
        Ok(())
    }

    /// SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(&mut self) -> Result<()> {
        self.child
            .kill()
            .await
            .with_context(|| format!("kill {}", self.name))
    }

    /// SIGTERM, and waits for an orderly end.
    ///
    /// # Errors
    /// When it takes longer than 20 s (it is killed then).
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        if let Some(pid) = self.pid() {
            let status = Command::new("kill")
                .args(["-TERM", &pid.to_string()])
                .status()
                .await?;
            anyhow::ensure!(
                status.success() || self.ended()?.is_some(),
                "SIGTERM to {}",
                self.name
            );
        }
        match tokio::time::timeout(STOP_DEADLINE, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => {
                self.kill().await?;
                bail!(
                    "{} did not stop within {STOP_DEADLINE:?}:\n{}",
                    self.name,
                    self.log_tail()
                )
            }
        }
    }

    /// Last lines of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}
