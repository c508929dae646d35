//! The health probe of a workload, from the file that it looks at to what `fuse` shows.

use std::time::Duration;

use anyhow::{Result, ensure};
use fuse_testkit::{Fuse, boot_permit, until};

use crate::suite::{Suite, project};

const ID: &str = "fuse-e2e-health";

/// A flip of the workload becomes the verdict on the record, both ways, and ends nothing.
pub(crate) async fn verdict_follows_the_workload(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("health").await?;
    let dir = project(
        stack,
        "health",
        "version: 1\nname: e2e-health\nresources: {cpus: 1, memory: 256MB}\nrun: touch /run/well\n\
         healthcheck: {exec: [test, -e, /run/well], interval: 2s, timeout: 2s, retries: 1}\n",
    )?;
    let turn = boot_permit(1).await?;
    fuse.run_in(&dir, &["up", "--wait-healthy"]).await?.ok()?;
    drop(turn);
    becomes(&fuse, "passing").await?;
    fuse.ok(&["environment", "exec", ID, "--", "rm", "/run/well"])
        .await?;
    becomes(&fuse, "failing").await?;
    fuse.ok(&["environment", "exec", ID, "--", "touch", "/run/well"])
        .await?;
    becomes(&fuse, "passing").await?;
    fuse.ok(&["environment", "destroy", ID, "--yes"]).await?;
    Ok(())
}

/// Waits for a verdict on an environment that goes on running.
async fn becomes(fuse: &Fuse, verdict: &str) -> Result<()> {
    until(verdict, Duration::from_secs(60), async || {
        let shown = fuse.ok(&["-o", "json", "environment", "get", ID]).await?;
        let shown = shown.json()?;
        ensure!(
            shown["state"] == "running" && shown["health"]["state"] == verdict,
            "{shown}"
        );
        Ok(())
    })
    .await
}
