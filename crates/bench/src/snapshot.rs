//! What snapshots of real guests cost, against `cp --sparse=always` of the same bytes, and against the memory that
//! the guest has touched. Ratios of one run; milliseconds are for orientation.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Guest, Stack, StackOptions, missing_for_guests};
use serde_json::{Value, json};

use crate::report::{Budget, Report};
use crate::stats::Series;

const GROUP: &str = "snapshot";
/// What the guest writes before its disk is taken (MiB).
const WRITTEN: u32 = 50;
/// Memory of the guest (MiB).
const MEMORY: u64 = 256;
/// What the file system of a fresh guest and its journal may add to what was written (MiB).
const OWN: f64 = 8.0;

/// Takes snapshots on a stack of their own.
pub(crate) async fn measure(report: &mut Report, quick: bool) -> Result<()> {
    if let Some(reason) = missing_for_guests() {
        report.skipped(GROUP, "snapshots of real guests", &reason);
        return Ok(());
    }
    let stack = Stack::start(StackOptions::default()).await?;
    let result = figures(&stack, report, if quick { 1 } else { 5 }).await;
    let clean = stack.teardown().await;
    result.and(clean)
}

async fn figures(stack: &Stack, report: &mut Report, rounds: usize) -> Result<()> {
    let body = json!({"task_id": "bench-snapshot",
        "spec": {"cpus": 1, "ram_mb": MEMORY, "storage_gb": 2}});
    let guest = stack.create(&body).await?;
    let write = format!("head -c {WRITTEN}M /dev/urandom >/root/written && sync");
    guest.ok(&write).await?;
    disk(stack, &guest, report, rounds).await?;
    live(stack, &guest, report, rounds).await?;
    fork(stack, &guest, report).await?;
    guest.destroy().await
}

/// The disk, alternating with `cp` and the same flush, so that both see the same machine.
async fn disk(stack: &Stack, guest: &Guest, report: &mut Report, rounds: usize) -> Result<()> {
    let overlay = vm_dir(stack, &guest.id).join("overlay.img");
    let copy = stack.fc_dir().join("agent-state/bench-copy.img");
    let (mut taken, mut copied) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    for _ in 0..rounds {
        let begun = Instant::now();
        let snapshot = take(stack, guest, false).await?;
        taken.push(begun.elapsed());
        bytes = snapshot["copied_bytes"].as_u64().context("copied_bytes")?;
        forget(stack, &snapshot).await?;
        copied.push(cp(&overlay, &copy)?);
    }
    let (taken, copied) = (Series::new(taken), Series::new(copied));
    let (mib, size) = (mib(bytes), mib(std::fs::metadata(&overlay)?.len()));
    let what = format!("disk, {WRITTEN} MB written to {size:.0} MiB: copied");
    let most = Budget::AtMost(f64::from(WRITTEN) + OWN);
    report.add(GROUP, what, mib, "MiB", most);
    let (taken, copied) = (taken.p50_ms(), copied.p50_ms());
    report.add(GROUP, "disk: snapshot", taken, "ms p50", Budget::None);
    report.add(
        GROUP,
        "disk: cp --sparse=always and sync",
        copied,
        "ms p50",
        Budget::None,
    );
    report.add(
        GROUP,
        "disk: snapshot / cp",
        taken / copied,
        "ratio",
        Budget::None,
    );
    Ok(())
}

/// Memory and disk of a guest that does nothing.
async fn live(stack: &Stack, guest: &Guest, report: &mut Report, rounds: usize) -> Result<()> {
    let pid = stack.record(&guest.id)?.pid;
    let (mut pauses, mut written) = (Vec::new(), 0);
    for _ in 0..rounds {
        let snapshot = take(stack, guest, true).await?;
        let id = snapshot["snapshot_id"].as_str().context("snapshot_id")?;
        let dir = stack.fc_dir().join("agent-state/snapshots").join(id);
        written = stored(&dir.join("mem"))? + stored(&dir.join("vmstate"))?;
        let pause = snapshot["pause_ms"].as_f64().context("pause_ms")?;
        pauses.push(Duration::from_secs_f64(pause / 1_000.0));
        forget(stack, &snapshot).await?;
    }
    let touched = touched(pid)?;
    let written = mib(written);
    report.add(
        GROUP,
        "live, idle: memory written",
        written,
        "MiB",
        Budget::None,
    );
    report.add(
        GROUP,
        "live, idle: memory touched",
        touched,
        "MiB",
        Budget::None,
    );
    let ratio = written / touched;
    report.add(
        GROUP,
        "live, idle: written / touched",
        ratio,
        "ratio",
        Budget::AtMost(1.05),
    );
    let pause = Series::new(pauses).p50_ms();
    report.add(
        GROUP,
        "live, idle: the guest stood still",
        pause,
        "ms p50",
        Budget::None,
    );
    Ok(())
}

/// What a fork's directory takes beside its disk: nothing of the base image is in it.
async fn fork(stack: &Stack, guest: &Guest, report: &mut Report) -> Result<()> {
    let path = format!("/v1/environments/{}?action=fork", guest.id);
    let made = stack.api()?.post(&path, &json!({})).await?;
    ensure!(made.status < 300, "fork: {}", made.text());
    let made = made.json()?;
    let id = made["id"].as_str().context("an id")?;
    let source = mib(stored(&vm_dir(stack, &guest.id).join("overlay.img"))?);
    let mut fork = 0;
    for entry in std::fs::read_dir(vm_dir(stack, id))? {
        fork += stored(&entry?.path())?;
    }
    let base = mib(stored(&stack.image().base())?);
    let what = format!("fork: its directory beside a base image of {base:.0} MiB");
    // What the fork writes while it boots comes on top of the copy.
    report.add(
        GROUP,
        what,
        mib(fork),
        "MiB",
        Budget::AtMost((source + OWN).ceil()),
    );
    let path = format!("/v1/environments/{id}");
    stack.api()?.delete(&path).await?.expect(204)?;
    Ok(())
}

async fn take(stack: &Stack, guest: &Guest, live: bool) -> Result<Value> {
    let path = format!("/v1/vm/{}/snapshot", guest.id);
    let taken = stack
        .agent_api()?
        .post(&path, &json!({"live": live}))
        .await?;
    taken.expect(200)?.json()
}

async fn forget(stack: &Stack, snapshot: &Value) -> Result<()> {
    let id = snapshot["snapshot_id"].as_str().context("snapshot_id")?;
    let path = format!("/v1/snapshots/{id}");
    stack.agent_api()?.delete(&path).await?.expect(204)?;
    Ok(())
}

/// A copy that keeps holes and is on the disk when it is done, as a snapshot is.
fn cp(from: &Path, to: &Path) -> Result<Duration> {
    let begun = Instant::now();
    for (program, args) in [
        ("cp", vec!["--sparse=always".as_ref(), from, to]),
        ("sync", vec![to]),
    ] {
        let status = Command::new(program).args(args).status()?;
        ensure!(status.success(), "{program}: {status}");
    }
    let took = begun.elapsed();
    std::fs::remove_file(to)?;
    Ok(took)
}

/// Guest memory that the VMM has in pages of its own (MiB): the resident part of the mapping that is as large as it.
fn touched(pid: u32) -> Result<f64> {
    let vmm = vmm_of(pid)?;
    let maps = std::fs::read_to_string(format!("/proc/{vmm}/smaps"))?;
    let figure = |line: &str, name: &str| -> Option<u64> {
        let rest = line.strip_prefix(name)?.trim();
        rest.strip_suffix(" kB")?.parse().ok()
    };
    let mut is_memory = false;
    for line in maps.lines() {
        if let Some(size) = figure(line, "Size:") {
            is_memory = size == MEMORY * 1024;
        }
        if let Some(resident) = figure(line, "Rss:").filter(|_| is_memory) {
            return Ok(mib(resident * 1024));
        }
    }
    anyhow::bail!("no mapping of {MEMORY} MiB in process {vmm}")
}

/// The process that holds the guest's memory: the VMM, or what the emulator runs the guest in.
fn vmm_of(pid: u32) -> Result<u32> {
    let children = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(children)?;
    match children.split_whitespace().next() {
        Some(child) => Ok(child.parse()?),
        None => Ok(pid),
    }
}

fn vm_dir(stack: &Stack, id: &str) -> PathBuf {
    stack.fc_dir().join("agent-state/vms").join(id)
}

/// Bytes that a file takes.
fn stored(path: &Path) -> Result<u64> {
    let meta = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    Ok(meta.blocks() * 512)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "figures for people; no file here has 2^53 bytes"
)]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}
