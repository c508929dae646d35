//! The end of a stack: destroy what runs, stop in an orderly way, fail when anything is left.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::parts::Stack;
use crate::leftovers;

impl Stack {
    /// Destroys every environment, stops both programs and fails when anything is left. Cleans up in any case.
    ///
    /// # Errors
    /// Names what did not stop or was left.
    pub async fn teardown(self) -> Result<()> {
        let mut problems: Vec<String> = Vec::new();
        if let Err(error) = self.destroy_all().await {
            problems.push(format!("{error:#}"));
        }
        for (name, daemon) in [
            ("orchestrator", &self.orchestrator),
            ("fc-agent", &self.agent),
        ] {
            if let Some(mut daemon) = daemon.lock().await.take() {
                match daemon.stop().await {
                    Ok(status) if status.success() => {}
                    Ok(status) => problems.push(format!(
                        "{name} ended with {status}:\n{}",
                        daemon.log_tail()
                    )),
                    Err(error) => problems.push(format!("{error:#}")),
                }
            }
        }
        problems.extend(
            leftovers::find(&self.slot)
                .into_iter()
                .filter(|l| !l.starts_with("loop") && !l.starts_with("mount")),
        );
        if problems.is_empty() || std::env::var_os("FUSE_TEST_KEEP").is_none() {
            leftovers::purge(&self.slot)?;
        }
        ensure!(problems.is_empty(), "teardown:\n{}", problems.join("\n"));
        Ok(())
    }

    /// Copies the logs of programs and guests to `target`, for looking at after a failure.
    ///
    /// # Errors
    /// When files cannot be copied.
    pub fn save_logs(&self, target: &Path) -> Result<()> {
        std::fs::create_dir_all(target)?;
        for (dir, prefix) in [
            (self.logs(), ""),
            (self.fc_dir().join("agent-state/vms"), "vm-"),
        ] {
            for file in leftovers::files_about(&dir, ".log") {
                let name = Path::new(&file)
                    .strip_prefix(&dir)?
                    .to_string_lossy()
                    .replace('/', "-");
                std::fs::copy(&file, target.join(format!("{prefix}{name}")))?;
            }
        }
        Ok(())
    }

    async fn destroy_all(&self) -> Result<()> {
        let api = self.api()?;
        let list = api
            .get("/v1/environments?limit=200")
            .await?
            .expect(200)?
            .json()?;
        for environment in list["environments"].as_array().into_iter().flatten() {
            let id = environment["id"]
                .as_str()
                .context("environment without id")?;
            let reply = api.delete(&format!("/v1/environments/{id}")).await?;
            ensure!(
                [204, 404].contains(&reply.status),
                "destroy {id}: {} {}",
                reply.status,
                reply.text()
            );
        }
        let vms = self.vm_ids().await?;
        ensure!(vms.is_empty(), "VMs without an environment: {vms:?}");
        for dir in [self.fc_dir().join("agent-state/vms"), self.socket_dir()] {
            let files = leftovers::files_about(&dir, "/");
            ensure!(files.is_empty(), "files of no VM: {files:?}");
        }
        Ok(())
    }
}
