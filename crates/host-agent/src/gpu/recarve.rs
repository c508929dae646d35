//! Bringing a partitioned card back to its layout when a VM gives its instances back.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;

/// How long the script may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Applies the stored layout, if the agent was told to.
#[derive(Debug)]
pub(crate) struct Recarve {
    script: Option<PathBuf>,
    /// The card takes one change at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Recarve {
    pub(crate) fn new(script: Option<PathBuf>) -> Self {
        Self {
            script,
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Runs the script without arguments. Whatever happens to it, the VM is gone: its failure is
    /// logged, and an instance that is missing is not given out.
    pub(crate) async fn run(&self, vm_id: &str) {
        let Some(script) = self.script.as_deref().filter(|script| script.exists()) else {
            return;
        };
        let _turn = self.turn.lock().await;
        let mut command = Command::new(script);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // Not the agent's secrets; and a group of its own, so that all of it can be ended.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().ends_with("_TOKEN") {
                command.env_remove(name);
            }
        }
        let mut child = match command.process_group(0).spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::error!(vm_id, script = %script.display(), %error, "MIG layout not applied");
                return;
            }
        };
        let group = child.id().and_then(|pid| i32::try_from(pid).ok());
        match tokio::time::timeout(LIMIT, child.wait()).await {
            Ok(Ok(status)) if status.success() => tracing::info!(vm_id, "MIG layout applied"),
            Ok(ended) => {
                tracing::error!(vm_id, script = %script.display(), ?ended, "MIG layout not applied");
            }
            Err(_) => {
                tracing::error!(vm_id, script = %script.display(), "MIG layout takes too long; ended");
                if let Some(group) = group {
                    let _gone = killpg(Pid::from_raw(group), Signal::SIGKILL);
                }
                let _reaped = child.wait().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(dir: &std::path::Path, body: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.join("setup.sh");
        std::fs::write(&path, format!("#!/bin/sh\ncd {}\n{body}\n", dir.display())).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn the_script_runs_without_arguments_one_at_a_time_and_may_fail() {
        let dir = tempfile::tempdir().unwrap();
        // `mkdir` fails when another run is under way.
        let body = "mkdir turn || exit 9; echo \"$#\" >>ran; rmdir turn; exit 3";
        let recarve = Recarve::new(Some(script(dir.path(), body)));
        tokio::join!(recarve.run("a"), recarve.run("b"));
        let ran = std::fs::read_to_string(dir.path().join("ran")).unwrap();
        assert_eq!(ran, "0\n0\n");
    }

    #[tokio::test]
    async fn without_the_script_nothing_happens() {
        Recarve::new(None).run("a").await;
        Recarve::new(Some("/nowhere/setup.sh".into()))
            .run("a")
            .await;
    }
}
