//! The first thing a newcomer does, and that it leaves nothing.

use anyhow::{Result, ensure};
use fuse_testkit::{Api, boot_permit};

use crate::suite::{Suite, repository};

/// `fuse up` of the shipped example, exec, the guest's own HTTP surface, list, destroy, nothing left.
pub(crate) async fn up_exec_destroy(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("hello").await?;
    let fusefile = repository("examples/hello/Fusefile");
    let fusefile = fusefile.to_string_lossy();

    let turn = boot_permit(1).await?;
    let up = fuse
        .run(&[
            "-o",
            "json",
            "up",
            "-f",
            &fusefile,
            "--task-id",
            "e2e-hello",
        ])
        .await?
        .ok()?;
    drop(turn);
    let environment = up.json()?;
    ensure!(environment["id"] == "fuse-e2e-hello", "{environment}");
    ensure!(environment["state"] == "running", "{environment}");
    ensure!(environment["host_id"] == "h1", "{environment}");

    let uname = fuse
        .run(&["environment", "exec", "fuse-e2e-hello", "--", "uname", "-s"])
        .await?
        .ok()?;
    ensure!(uname.stdout == "Linux\n", "uname says {:?}", uname.stdout);
    let table = fuse.run(&["environment", "list"]).await?.ok()?;
    ensure!(
        table.stdout.contains("fuse-e2e-hello") && table.stdout.contains("running"),
        "{}",
        table.stdout
    );

    let logs = ["environment", "logs", "fuse-e2e-hello", "--source"];
    let agent = fuse.run(&[&logs[..], &["agent"]].concat()).await?.ok()?;
    for line in ["the root file system is mounted", "the host is served"] {
        ensure!(agent.stdout.contains(line), "{line:?} in {}", agent.stdout);
    }
    let console = fuse.run(&[&logs[..], &["console"]].concat()).await?.ok()?;
    ensure!(!console.stdout.is_empty(), "the console said nothing");

    // The guest agent's public surface, over the port that the host publishes.
    let url = environment["url"].as_str().unwrap_or_default();
    let surface = Api::new(format!("https://{url}"), None)?;
    let health = surface.get("/health").await?.expect(200)?.json()?;
    ensure!(
        health["status"] == "ok" && health["vm_id"] == "fuse-e2e-hello",
        "{health}"
    );
    surface.get("/v1/info").await?.expect(401)?;

    let record = stack.record("fuse-e2e-hello")?;
    fuse.run(&["environment", "destroy", "fuse-e2e-hello", "--yes"])
        .await?
        .ok()?;
    stack.expect_gone(&record)?;
    fuse.run(&["environment", "get", "fuse-e2e-hello"])
        .await?
        .expect(1)?
        .says("not found: vm fuse-e2e-hello not found")?;
    fuse.run(&["environment", "destroy", "fuse-e2e-hello", "--yes"])
        .await?
        .expect(1)?;
    Ok(())
}
