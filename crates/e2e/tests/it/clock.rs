//! A guest knows what time it is: right after its boot, after a pause that nobody ended for a while, when it goes on
//! from a snapshot that is some time old, and when it boots from one.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Fuse, Guest, Stack, StackOptions, boot_permit, until};

use crate::suite::{Suite, with_stack};

/// How far off a clock may be: what it takes to tell a guest the time on a busy machine.
const SLACK: f64 = 0.25;
/// Longer than a snapshot pauses a guest, and much longer than that.
const PAUSED: Duration = Duration::from_secs(3);
/// Whoever is told later than this is not told.
const TOLD: Duration = Duration::from_secs(60);

pub(crate) async fn guests_know_what_time_it_is(_: Suite) -> Result<()> {
    with_stack("clock", StackOptions::default(), async |stack| {
        let fuse = stack.fuse("clock").await?;
        let guest = stack.boot("e2e-clock").await?;
        is_right(&guest).await.context("after its boot")?;

        let live = snapshot(&fuse, &guest, "--live").await?;
        is_right(&guest).await.context("after a live snapshot")?;
        paused_and_alone(stack, &guest).await?;

        restore(&fuse, &live).await?;
        is_right(&guest).await.context("after a live restore")?;
        let turn = boot_permit(1).await?;
        let mut args = vec!["-o", "json", "environment", "fork", &guest.id];
        args.extend(["--reuse-snapshot", &live]);
        let fork = fuse.ok(&args).await?.json()?;
        let fork = stack.guest(fork["id"].as_str().context("an id")?).await?;
        is_right(&fork).await.context("of a fork")?;
        fork.destroy().await?;
        let disk = snapshot(&fuse, &guest, "").await?;
        restore(&fuse, &disk).await?;
        is_right(&guest).await.context("after a disk restore")?;
        drop(turn);
        guest.destroy().await
    })
    .await
}

/// The agent dies while it has a guest paused, and comes back later.
async fn paused_and_alone(stack: &Stack, guest: &Guest) -> Result<()> {
    stack.kill_agent().await?;
    let socket = stack.dir().join("run").join(format!("{}.sock", guest.id));
    pause(&socket)?;
    // What is tested is that time passes.
    tokio::time::sleep(PAUSED).await;
    stack.start_agent().await?;
    let right = until("the right time", TOLD, || is_right(guest)).await;
    right.context("after a pause without an agent")
}

/// As the agent does it for a snapshot.
fn pause(socket: &Path) -> Result<()> {
    let mut stream = UnixStream::connect(socket).context("the VMM's socket")?;
    let body = r#"{"state":"Paused"}"#;
    write!(
        stream,
        "PATCH /vm HTTP/1.1\r\nHost: vmm\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    ensure!(answer.ends_with(b"204"), "{}", answer.escape_ascii());
    Ok(())
}

/// Its clock shows a time between the begin and the end of the call that reads it.
async fn is_right(guest: &Guest) -> Result<()> {
    let before = now()?;
    let shown = guest.agent_exec(&["date", "+%s.%N"], 10_000).await?;
    let after = now()?;
    let shown: f64 = shown.out().trim().parse().context("a time")?;
    ensure!(
        (before - SLACK..=after + SLACK).contains(&shown),
        "the guest's clock is off by {:.3} to {:.3} s",
        shown - after,
        shown - before
    );
    Ok(())
}

fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// Takes one; its id.
async fn snapshot(fuse: &Fuse, guest: &Guest, kind: &str) -> Result<String> {
    let mut args = vec!["-o", "json", "snapshot", "create", &guest.id];
    args.extend(Some(kind).filter(|kind| !kind.is_empty()));
    let made = fuse.ok(&args).await?.json()?;
    Ok(made["id"].as_str().context("an id")?.to_owned())
}

async fn restore(fuse: &Fuse, id: &str) -> Result<()> {
    fuse.ok(&["snapshot", "restore", id, "--yes"]).await?;
    Ok(())
}
