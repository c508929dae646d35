//! The disk of a host fills up in the middle of a snapshot: the guest goes on, nothing half is there to be seen,
//! and the error says how much was missing.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Fuse, Guest, Slot, Stack, StackOptions, leftovers};

use crate::host_failures::{run, small_file_system};
use crate::suite::{Suite, finish};

/// What the guest has in its memory only, so that nobody counts with it beforehand (MiB).
const UNWRITTEN: u64 = 16;
/// Room beside what the snapshot seems to need: enough for the guest to write that, not to copy it, too.
const ROOM: u64 = UNWRITTEN + 8;
/// The same before a live snapshot: written twice it is more than the memory that nobody touched leaves over.
const UNWRITTEN_LIVE: u64 = 64;
/// So that little of the memory is untouched (MiB).
const TOUCHED: u64 = 90;
/// What [`Stack::boot`] gives a guest (MiB).
const MEMORY: u64 = 256;
/// Room beside what a live snapshot seems to need, which is all of the memory.
const ROOM_LIVE: u64 = 8;

pub(crate) async fn in_the_middle_of_a_snapshot(_: Suite) -> Result<()> {
    let slot = Slot::claim()?;
    let fc_dir = small_file_system(&slot, &["-m", "0"])?;
    let options = StackOptions {
        fc_dir: Some(fc_dir.clone()),
        // Whoever keeps room free notices before it is too late.
        agent_env: vec![("FUSE_MIN_FREE_MB".to_owned(), "0".to_owned())],
        ..StackOptions::default()
    };
    let stack = Stack::start_in(slot, options).await?;
    finish("full-disk", stack, async |stack| {
        fills_up(stack, &fc_dir).await
    })
    .await
}

async fn fills_up(stack: &Stack, fc_dir: &Path) -> Result<()> {
    let fuse = stack.fuse("full-disk").await?;
    let guest = stack.boot("e2e-full-disk").await?;
    guest
        .ok(
            "cd /proc/sys/vm && echo 90 >dirty_ratio && echo 80 >dirty_background_ratio && \
             echo 0 >dirty_writeback_centisecs && echo 360000 >dirty_expire_centisecs",
        )
        .await?;
    of_the_disk(stack, fc_dir, &fuse, &guest).await?;
    live(stack, fc_dir, &fuse, &guest).await?;
    guest.destroy().await
}

async fn of_the_disk(stack: &Stack, fc_dir: &Path, fuse: &Fuse, guest: &Guest) -> Result<()> {
    guest
        .ok("yes kept | head -c 8M >/root/kept && sync")
        .await?;
    leave_unwritten(guest, UNWRITTEN).await?;
    let before = sums(guest).await?;
    let filler = fc_dir.join("filler");
    leave(&filler, stored(fc_dir, guest)? + (ROOM << 20))?;
    runs_out(fuse, guest, &[], "copy: ").await?;
    nothing_is_there(stack, fc_dir, guest).await?;
    ensure!(sums(guest).await? == before, "the guest lost something");
    guest
        .ok("echo on >/root/on && sync && cat /root/on")
        .await?;

    // Less than it is known to need: refused before the guest has to hold still.
    leave(&filler, stored(fc_dir, guest)? / 2)?;
    let refused = fuse.fails(&["snapshot", "create", &guest.id]).await?;
    refused.says("the host lacks ")?;
    refused.says("MiB of disk space")?;
    nothing_is_there(stack, fc_dir, guest).await?;

    std::fs::remove_file(&filler)?;
    let id = taken(fuse, guest, &[], "disk").await?;
    ensure!(sums(guest).await? == before, "the guest lost something");
    fuse.ok(&["snapshot", "delete", &id, "--yes"]).await?;
    Ok(())
}

/// The memory is written beside the disk, by another program, while the guest stands still.
async fn live(stack: &Stack, fc_dir: &Path, fuse: &Fuse, guest: &Guest) -> Result<()> {
    let touch = format!("head -c {TOUCHED}M /dev/urandom >/dev/shm/random");
    guest.ok(&touch).await?;
    guest.ok("echo in-memory >/dev/shm/marker").await?;
    leave_unwritten(guest, UNWRITTEN_LIVE).await?;
    let whole = "cksum /dev/shm/* /root/kept /root/unwritten; cat /proc/sys/kernel/random/boot_id";
    let before = guest.ok(whole).await?;
    let filler = fc_dir.join("filler");
    let known = stored(fc_dir, guest)? + (MEMORY << 20);
    leave(&filler, known + (ROOM_LIVE << 20))?;
    runs_out(fuse, guest, &["--live"], "snapshot: up to ").await?;
    nothing_is_there(stack, fc_dir, guest).await?;
    let now = guest.ok(whole).await?;
    ensure!(now == before, "the guest lost something: {before}\n{now}");
    guest.ok("echo on >>/root/on && sync").await?;

    std::fs::remove_file(&filler)?;
    let id = taken(fuse, guest, &["--live"], "live").await?;
    guest
        .ok("rm /dev/shm/marker && echo ruined >/root/kept && sync")
        .await?;
    fuse.ok(&["snapshot", "restore", &id, "--yes"]).await?;
    let now = guest.ok(whole).await?;
    ensure!(now == before, "it was restored as {now}, not {before}");
    fuse.ok(&["snapshot", "delete", &id, "--yes"]).await?;
    Ok(())
}

/// Takes a snapshot that the disk has no room for, which is found out in the middle.
async fn runs_out(fuse: &Fuse, guest: &Guest, flags: &[&str], when: &str) -> Result<()> {
    let create = ["snapshot", "create", &guest.id];
    let failed = fuse.fails(&[&create[..], flags].concat()).await?;
    failed.says(&format!("the disk of the host filled up during the {when}"))?;
    failed.says("MiB more were needed")
}

/// Takes one, of which `kind` says what is in it; its id.
async fn taken(fuse: &Fuse, guest: &Guest, flags: &[&str], kind: &str) -> Result<String> {
    let create = ["snapshot", "create", &guest.id, "-o", "json"];
    let made = fuse.ok(&[&create[..], flags].concat()).await?.json()?;
    ensure!(made["state"] == "ready" && made["kind"] == kind, "{made}");
    Ok(made["id"].as_str().context("an id")?.to_owned())
}

/// A new file of so many MiB that stays in memory until somebody asks for it to be written. One that is written over is
/// written back at once.
async fn leave_unwritten(guest: &Guest, size: u64) -> Result<()> {
    let write =
        format!("rm -f /root/unwritten && yes unwritten | head -c {size}M >/root/unwritten");
    guest.ok(&write).await?;
    let dirty = guest.ok("awk '/^Dirty:/ {print $2}' /proc/meminfo").await?;
    let dirty: u64 = dirty.parse().context("Dirty")?;
    ensure!(dirty >= size * 1024 * 9 / 10, "{dirty} KiB are unwritten");
    Ok(())
}

async fn sums(guest: &Guest) -> Result<String> {
    guest.ok("sha256sum /root/kept /root/unwritten").await
}

/// Bytes that the guest's disk takes.
fn stored(fc_dir: &Path, guest: &Guest) -> Result<u64> {
    let dir = fc_dir.join("agent-state/vms").join(&guest.id);
    let disk = dir.join("overlay.img");
    let meta = std::fs::metadata(&disk).with_context(|| disk.display().to_string())?;
    Ok(meta.blocks() * 512)
}

/// Leaves this many bytes of the file system free.
fn leave(filler: &Path, bytes: u64) -> Result<()> {
    if filler.exists() {
        std::fs::remove_file(filler)?;
    }
    let dir = filler.parent().context("a directory")?;
    let df = Command::new("df")
        .args(["--output=avail", "-B1"])
        .arg(dir)
        .output()?;
    let text = String::from_utf8(df.stdout)?;
    let free: u64 = text.lines().nth(1).context("df")?.trim().parse()?;
    let taken = free.checked_sub(bytes).context("it is full already")?;
    run(Command::new("fallocate")
        .args(["-l", &taken.to_string()])
        .arg(filler))
}

/// Neither the API nor the agent shows a snapshot, and there is none on the disk.
async fn nothing_is_there(stack: &Stack, fc_dir: &Path, guest: &Guest) -> Result<()> {
    let list = stack.api()?.get("/v1/snapshots").await?.expect(200)?;
    let list = list.json()?;
    let ready = list["snapshots"].as_array().context("a list")?;
    let ready = ready.iter().filter(|snapshot| snapshot["state"] == "ready");
    ensure!(ready.count() == 0, "{list}");
    let path = format!("/v1/vm/{}/snapshots", guest.id);
    let kept = stack.agent_api()?.get(&path).await?.expect(200)?.json()?;
    ensure!(
        kept["snapshots"].as_array().is_some_and(Vec::is_empty),
        "{kept}"
    );
    let dir: PathBuf = fc_dir.join("agent-state/snapshots");
    let left: Vec<_> = std::fs::read_dir(&dir)?.flatten().collect();
    let is_one = |name: &str| !name.starts_with('.') || name.starts_with(".new-");
    let names = left
        .iter()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    let left: Vec<_> = names.filter(|name| is_one(name)).collect();
    ensure!(left.is_empty(), "{left:?}");
    let memory = leftovers::files_about(fc_dir, "/mem");
    ensure!(memory.is_empty(), "{memory:?}");
    Ok(())
}
