//! A guest that does its worst: the control channel answers throughout and afterwards.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Guest, Stack, boot_permit, until};
use serde_json::json;

use crate::suite::Suite;

/// How long hundreds of killed processes may take to be gone.
const BURIAL_LIMIT: Duration = Duration::from_secs(60);

/// Kills every process, keeps the CPU busy, fills the disk, exhausts memory, forks without end; after each, exec answers and the guest
/// has not been restarted.
pub(crate) async fn the_control_channel_answers(suite: Suite) -> Result<()> {
    let stack = suite.stack().await?;
    let turn = boot_permit(1).await?;
    let spec = json!({"cpus": 1, "ram_mb": 256, "storage_gb": 1});
    let guest = stack
        .create(&json!({"task_id": "e2e-abuse", "spec": spec}))
        .await?;
    drop(turn);
    let boot = guest.ok("cat /proc/sys/kernel/random/boot_id").await?;

    kill_everything(&guest).await?;
    answers(&guest, &boot, "killing every process").await?;
    keep_the_cpu_busy(&guest, &boot).await?;
    exhaust_memory(&guest).await?;
    answers(&guest, &boot, "exhausting memory").await?;
    fork_without_end(&guest).await?;
    answers(&guest, &boot, "a fork bomb").await?;
    fill_the_disk(stack, &guest).await?;
    answers(&guest, &boot, "filling the disk").await?;

    let record = stack.record(&guest.id)?;
    guest.destroy().await?;
    stack.expect_gone(&record)
}

async fn answers(guest: &Guest, boot: &str, after: &str) -> Result<()> {
    let now = guest
        .ok("cat /proc/sys/kernel/random/boot_id")
        .await
        .with_context(|| format!("after {after}"))?;
    ensure!(now == boot, "the guest was restarted by {after}");
    let state = guest.get().await?["state"].clone();
    ensure!(
        state == "running",
        "after {after} the environment is {state}"
    );
    Ok(())
}

async fn kill_everything(guest: &Guest) -> Result<()> {
    // The signal spares only its sender and PID 1.
    let result = guest
        .sh("sleep 4400 & sleep 4400 & kill -9 -1; echo sent")
        .await?;
    ensure!(
        result.exit_code == 0 && result.out() == "sent\n",
        "{result:?}"
    );
    let left = guest
        .ok("grep -lz '^4400$' /proc/[0-9]*/cmdline || true")
        .await?;
    ensure!(left.is_empty(), "survived kill -9 -1: {left}");
    // Aimed at the agent by number. (SIGTERM asks a guest to go down, so not that one.)
    for signal in ["KILL", "SEGV", "ABRT", "HUP", "STOP"] {
        guest.ok(&format!("kill -{signal} 1; true")).await?;
    }
    Ok(())
}

async fn keep_the_cpu_busy(guest: &Guest, boot: &str) -> Result<()> {
    // Many to one CPU, all with an appetite for it.
    let hogs = "for n in $(seq 16); do \
        setsid sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1 & done";
    guest.ok(hogs).await?;
    let begun = guest.ok("pgrep -cf 'while :; [d]o'").await?;
    ensure!(begun.trim() == "16", "{begun} loops run");
    answers(guest, boot, "keeping the CPU busy").await?;
    guest.ok("pkill -KILL -f 'while :; [d]o'").await.map(drop)
}

async fn exhaust_memory(guest: &Guest) -> Result<()> {
    let result = guest.exec(&["tail", "/dev/zero"], 120_000).await?;
    ensure!(
        result.exit_code == 137,
        "tail of an endless file ended with {result:?}"
    );
    Ok(())
}

async fn fork_without_end(guest: &Guest) -> Result<()> {
    let result = guest
        .exec(
            &["bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 60"],
            5_000,
        )
        .await?;
    ensure!(
        result.exit_code == 124 || result.exit_code == 137,
        "the bomb ended with {result:?}"
    );
    // All of them are killed at once; an emulated CPU takes a while to bury hundreds.
    until("the bomb is gone", BURIAL_LIMIT, || async {
        let count = guest.ok("ls -d /proc/[0-9]* | wc -l").await?;
        let processes: u64 = count.trim().parse()?;
        ensure!(processes < 200, "{processes} processes are left");
        Ok(())
    })
    .await
}

async fn fill_the_disk(stack: &Stack, guest: &Guest) -> Result<()> {
    let free = |text: &str| text.trim().parse::<u64>().context("df");
    let before = free(&guest.ok("df --output=size -B1M / | tail -1").await?)?;
    ensure!(before <= 1024, "storage_gb: 1 gave a disk of {before} MiB");
    let result = guest
        .sh("fallocate -l 4G /fill-1 || head -c 4G /dev/zero > /fill-2")
        .await;
    // Whatever the writer was told: the disk is full now.
    drop(result);
    let left = free(&guest.ok("df --output=avail -B1M / | tail -1").await?)?;
    ensure!(left <= 1, "{left} MiB left on a full disk");
    let upload = |path: &str| json!({"path": path, "content_b64": "aGVsbG8="});
    let agent = stack.agent_api()?;
    let route = format!("/v1/vm/{}/upload", guest.id);
    agent
        .post(&route, &upload("/run/still-works"))
        .await?
        .expect(200)?;
    ensure!(
        guest.ok("cat /run/still-works").await? == "hello",
        "upload to memory"
    );
    guest
        .ok("rm -f /fill-1 /fill-2; echo room > /root/again")
        .await?;
    Ok(())
}
