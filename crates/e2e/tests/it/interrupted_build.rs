//! Ctrl-C in the middle of a snapshot of `fuse build`: the builder goes, and no half of a layer stays.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fuse_testkit::{Stack, StackOptions, boot_permit, until};

use crate::suite::{Suite, project, with_stack};

/// What it leaves unwritten has to be written before the disk can be copied, so that a snapshot takes a while.
const FUSEFILE: &str = "\
version: 1
name: e2e-interrupted
resources: {cpus: 1, memory: 512MB}
cache: {enabled: true}
build:
  - yes kept | head -c 8M > big
  - echo two > two
";
/// Begin of the name of a directory that a snapshot is made in.
const STAGED: &str = ".new-";
/// Longer than a busy machine takes to emulate it all.
const PATIENCE: Duration = Duration::from_secs(150);

pub(crate) async fn while_a_snapshot_is_taken(_: Suite) -> Result<()> {
    with_stack(
        "interrupted-build",
        StackOptions::default(),
        async |stack| {
            let turn = boot_permit(1).await?;
            interrupt(stack).await?;
            drop(turn);
            nothing_runs(stack).await?;
            only_whole_ones(stack).await
        },
    )
    .await
}

async fn interrupt(stack: &Stack) -> Result<()> {
    let fuse = stack.fuse("interrupted").await?;
    let dir = project(stack, "interrupted", FUSEFILE)?;
    let snapshots = stack.fc_dir().join("agent-state/snapshots");
    let child = fuse.command(&["build"]).current_dir(dir).spawn()?;
    let pid = child.id().context("it has ended")?.to_string();
    let ended = child.wait_with_output();
    let taking = until("a snapshot begins", PATIENCE, async || {
        ensure!(
            names(&snapshots)?
                .iter()
                .any(|name| name.starts_with(STAGED))
        );
        Ok(())
    });
    let interrupted = async {
        taking.await?;
        let mut kill = std::process::Command::new("kill");
        ensure!(kill.args(["-INT", &pid]).status()?.success());
        anyhow::Ok(())
    };
    let (interrupted, output) = tokio::join!(interrupted, ended);
    let output = output?;
    let said = String::from_utf8_lossy(&output.stderr);
    interrupted.with_context(|| said.to_string())?;
    ensure!(
        output.status.code() == Some(130),
        "{:?}: {said}",
        output.status
    );
    ensure!(output.stdout.is_empty(), "{:?}", output.stdout);
    for text in [
        "\ninterrupted; destroying builder fuse-build-e2e-interrupted-",
        "\ninterrupted; nothing was kept but the layers that were finished\n",
    ] {
        ensure!(said.contains(text), "{text:?}: {said}");
    }
    ensure!(!said.contains("warning"), "{said}");
    Ok(())
}

/// By the time that the command has ended.
async fn nothing_runs(stack: &Stack) -> Result<()> {
    let api = stack.api()?;
    let found = api.get("/v1/environments").await?.expect(200)?.json()?;
    ensure!(found["environments"] == serde_json::json!([]), "{found}");
    ensure!(stack.vm_ids().await?.is_empty());
    let host = api.get("/v1/hosts/h1").await?.expect(200)?.json()?;
    ensure!(host["allocated"]["vm_count"] == 0, "{host}");
    let traces = stack.traces("e2e-interrupted");
    ensure!(traces.is_empty(), "left:\n{}", traces.join("\n"));
    Ok(())
}

/// What the host has is what the records name, and it is whole. The snapshot may have been quicker than the signal.
async fn only_whole_ones(stack: &Stack) -> Result<()> {
    let snapshots = stack.fc_dir().join("agent-state/snapshots");
    until("what was begun is taken away", PATIENCE, async || {
        let there: BTreeSet<String> = names(&snapshots)?;
        let list = stack
            .api()?
            .get("/v1/snapshots")
            .await?
            .expect(200)?
            .json()?;
        let list = list["snapshots"].as_array().context("a list")?;
        let recorded: BTreeSet<String> = list
            .iter()
            .filter_map(|snapshot| snapshot["id"].as_str().map(str::to_owned))
            .collect();
        if there != recorded || list.iter().any(|snapshot| snapshot["state"] != "ready") {
            bail!("there: {there:?}, recorded: {list:?}");
        }
        Ok(())
    })
    .await
}

/// Snapshots of a host, those that are being made as well.
fn names(snapshots: &Path) -> Result<BTreeSet<String>> {
    let entries = match std::fs::read_dir(snapshots) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| anyhow::Ok(entry?.file_name().to_string_lossy().into_owned()));
    names
        .filter(
            |name| !matches!(name, Ok(name) if name.starts_with('.') && !name.starts_with(STAGED)),
        )
        .collect()
}
