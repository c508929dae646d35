//! Snapshot, restore, fork, rotate, drain: what an environment can go through besides its end.

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Fuse, Guest, Stack, boot_permit};
use serde_json::Value;

use crate::suite::Suite;

/// One environment through everything, by the CLI, and a fork of it that shares nothing.
pub(crate) async fn from_snapshot_to_drain(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let fuse = stack.fuse("lifecycle").await?;
    let source = stack.boot("e2e-life").await?;

    source.ok("echo kept > /root/file").await?;
    let disk = snapshot(&fuse, &source, &[]).await?;
    source.ok("echo ruined > /root/file").await?;
    let turn = boot_permit(1).await?;
    restore(&fuse, &disk).await?;
    drop(turn);
    ensure!(source.ok("cat /root/file").await? == "kept", "the disk");

    let turn = boot_permit(1).await?;
    let fork = fork(stack, &fuse, &source).await?;
    drop(turn);
    ensure!(fork.ok("cat /root/file").await? == "kept", "its disk");
    let identity = "cat /etc/machine-id; hostname; ip -4 -o addr show eth0; cat /fuse/auth-token";
    let (ours, its) = (source.ok(identity).await?, fork.ok(identity).await?);
    ensure!(
        !ours.lines().any(|line| its.contains(line)),
        "shared with the source: {ours} {its}"
    );

    // The memory goes on where it was: a shell that counts, and what it has counted.
    fork.ok("(while :; do i=$((i+1)); echo $i > /run/count; sleep 0.1; done) >/dev/null 2>&1 & echo $! > /run/pid")
        .await?;
    fork.ok("until [ -s /run/count ]; do :; done").await?;
    let live = snapshot(&fuse, &fork, &["--live"]).await?;
    ensure!(live["kind"] == "live", "{live}");
    fork.ok("kill $(cat /run/pid); rm /run/count").await?;
    restore(&fuse, &live).await?;
    fork.ok("read a < /run/count; until read b < /run/count && [ \"$b\" -gt \"$a\" ]; do :; done")
        .await?;

    let token = source.ok("cat /fuse/auth-token").await?;
    let id = source.id.as_str();
    fuse.ok(&["environment", "rotate-token", id]).await?;
    ensure!(source.ok("cat /fuse/auth-token").await? != token, "rotated");

    // What was left in the background may finish: it hears SIGTERM and is waited for.
    source
        .ok("(trap 'sleep 1; echo flushed > /root/last; exit' TERM; while :; do sleep 0.1; done) >/dev/null 2>&1 &")
        .await?;
    fuse.ok(&["environment", "drain", id]).await?;
    ensure!(source.get().await?["state"] == "draining", "not draining");
    let last = source.agent_exec(&["cat", "/root/last"], 10_000).await?;
    ensure!(
        last.out() == "flushed\n",
        "the workload lost its last words"
    );
    fuse.fails(&["environment", "drain", id])
        .await?
        .says("vm not running")?;

    fork.destroy().await?;
    source.destroy().await
}

async fn snapshot(fuse: &Fuse, guest: &Guest, flags: &[&str]) -> Result<Value> {
    let args = ["-o", "json", "snapshot", "create", &guest.id];
    let made = fuse.ok(&[&args[..], flags].concat()).await?.json()?;
    ensure!(made["state"] == "ready", "{made}");
    Ok(made)
}

async fn restore(fuse: &Fuse, snapshot: &Value) -> Result<()> {
    let id = snapshot["id"].as_str().context("a snapshot has an id")?;
    fuse.ok(&["snapshot", "restore", id, "--yes"]).await?;
    Ok(())
}

async fn fork(stack: &Stack, fuse: &Fuse, source: &Guest) -> Result<Guest> {
    let args = ["-o", "json", "environment", "fork", &source.id];
    let made = fuse.ok(&args).await?.json()?;
    stack
        .guest(made["id"].as_str().context("a fork has an id")?)
        .await
}
