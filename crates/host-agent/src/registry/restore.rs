//! Bringing a VM back to a snapshot, in place.
//!
//! ```text
//! copy to overlay.restore ─> end the VMM ─> overlay.img to overlay.previous, copy to overlay.img
//!     ─> boot or resume ─┬─> guest answers: remove overlay.previous
//!                        └─> it does not: put overlay.previous back, boot that
//! ```
//!
//! The copy is a file of its own, so that nothing of the old disk is left in any cache. The VM runs
//! until the copy is whole. As long as `overlay.previous` exists the restore has not been answered,
//! and an agent that finds it without a running VMM puts it back ([`settle`]).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use fuse_wire_host::{RestoreResponse, SnapshotKind, VmState};

use super::actor::Actor;
use super::bring_up::Kind;
use super::error::{LeaseError, RestoreError};
use super::journal::{Journal, stop_process};
use super::meta::Meta;
use super::timings::Timings;
use crate::disk::{copy, space};
use crate::fail_point::place;
use crate::file_error::{FileError, failed};
use crate::report::chain;
use crate::snapshot::Held;

/// Brings the actor's VM back to `from`.
pub(super) async fn run(actor: &mut Actor, from: &Held) -> Result<RestoreResponse, RestoreError> {
    check(actor, from)?;
    let disks = Disks::of(&actor.meta);
    let staged = stage(actor, &disks, from).await;
    if let Err(error) = staged {
        let _best_effort = fs::remove_file(&disks.staged);
        return Err(error);
    }
    place("restore: staged");
    // Whatever uses the guest ends: it is about to be another one.
    actor.enter(VmState::Booting);
    actor.vm.leases.close();
    actor.vm.leases.wait().await;
    actor.vm.leases.reopen();
    if let Err(error) = stop_process(&actor.host, &actor.meta).await {
        // It runs on, as far as anybody can tell; its end would be noticed.
        let running = actor.process.is_some();
        actor.enter(if running {
            VmState::Running
        } else {
            VmState::Stopped
        });
        return Err(RestoreError::Stop(error));
    }
    place("restore: stopped");
    actor.process = None;
    actor.meta.process = None;
    let moved = disks.clone();
    let swapped = tokio::task::spawn_blocking(move || moved.swap()).await;
    place("restore: swapped");
    let brought = match swapped.map_err(io::Error::other) {
        Ok(Ok(())) => bring_up(actor, kind(from)).await,
        Ok(Err(error)) => Err(RestoreError::Files(error)),
        Err(error) => Err(RestoreError::Files(failed("replace", &disks.current)(
            error,
        ))),
    };
    match brought {
        Ok(clock_synced) => {
            place("restore: up");
            let previous = disks.previous.clone();
            forget(&actor.meta.vm_id, previous).await;
            place("restore: done");
            Ok(answer(actor, from, clock_synced))
        }
        Err(error) => Err(go_back(actor, disks, error).await),
    }
}

fn kind(from: &Held) -> Kind<'_> {
    match from.stored().view.kind {
        SnapshotKind::Disk => Kind::Boot,
        SnapshotKind::Live => Kind::Resume(from),
    }
}

fn answer(actor: &Actor, from: &Held, clock_synced: Option<bool>) -> RestoreResponse {
    let kind = from.stored().view.kind;
    let (vm_id, id) = (&actor.meta.vm_id, &from.stored().view.snapshot_id);
    tracing::info!(vm_id, snapshot_id = id, ?kind, "vm restored");
    RestoreResponse {
        ok: true,
        kind,
        boot_id: actor.meta.boot_id.clone(),
        clock_synced,
    }
}

fn check(actor: &Actor, from: &Held) -> Result<(), RestoreError> {
    let id = || actor.meta.vm_id.clone();
    match actor.vm.state() {
        VmState::Running | VmState::Stopped | VmState::Unknown => {}
        VmState::Creating | VmState::Booting => {
            return Err(RestoreError::Lease(LeaseError::Booting { id: id() }));
        }
        VmState::Deleting => return Err(RestoreError::Lease(LeaseError::Deleted { id: id() })),
    }
    let (meta, stored) = (&actor.meta, from.stored());
    let same = stored.view.origin_vm_id == meta.vm_id
        && stored.index == meta.slot.index
        && stored.storage_gb == meta.spec.storage_gb
        && stored.view.base_digest.as_ref() == Some(&meta.disks.image_digest);
    if same {
        return Ok(());
    }
    let snapshot = stored.view.snapshot_id.clone();
    Err(RestoreError::Foreign { id: id(), snapshot })
}

/// Copies the snapshot's disk beside the VM's.
async fn stage(actor: &Actor, disks: &Disks, from: &Held) -> Result<(), RestoreError> {
    let (overlay, to) = (from.files().overlay(), disks.staged.clone());
    let floor = actor.host.config.vms.min_free_mib;
    let dir = actor.host.disk_dir();
    space::ensure_room(dir, space::stored_bytes(&overlay), floor).map_err(RestoreError::Space)?;
    let work = move || {
        // Of a restore that was cut short.
        let _none = fs::remove_file(&to);
        let copied = copy::sparse(&overlay, &to).and_then(|()| File::open(&to)?.sync_all());
        copied.map_err(failed("write", &to))
    };
    let copied = tokio::task::spawn_blocking(work);
    let lost = |lost| failed("write", &disks.staged)(io::Error::other(lost));
    copied
        .await
        .map_err(lost)
        .flatten()
        .map_err(RestoreError::Files)
}

async fn bring_up(actor: &mut Actor, kind: Kind<'_>) -> Result<Option<bool>, RestoreError> {
    let mut journal = Journal::default();
    let brought = actor.bring_up(kind, &mut journal, &Timings::start()).await;
    let error = match brought {
        Ok(clock_synced) => return Ok(clock_synced),
        Err(failure) => actor.create_error(failure),
    };
    journal
        .undo(&actor.host, &actor.meta)
        .await
        .map_err(RestoreError::Stop)?;
    actor.process = None;
    actor.meta.process = None;
    Err(RestoreError::BringUp(Box::new(error)))
}

/// Puts the disk of before back and boots it. A VM that is being deleted, or whose agent ends, is
/// left without a VMM.
async fn go_back(actor: &mut Actor, disks: Disks, error: RestoreError) -> RestoreError {
    let vm_id = actor.meta.vm_id.clone();
    tracing::error!(vm_id, error = chain(&error), "vm not restored");
    let back = tokio::task::spawn_blocking(move || disks.settle()).await;
    let back = back
        .map_err(io::Error::other)
        .and_then(|back| back.map_err(io::Error::other));
    if let Err(error) = back {
        tracing::error!(
            vm_id,
            error = chain(&error),
            "the disk of before is not back"
        );
        actor.enter(VmState::Stopped);
        return RestoreError::Stopped {
            id: vm_id,
            source: Box::new(error),
        };
    }
    if actor.vm.stop.is_cancelled() || actor.host.shutdown.is_cancelled() {
        actor.enter(VmState::Stopped);
        return error;
    }
    match bring_up(actor, Kind::Boot).await {
        Ok(_) => RestoreError::RolledBack {
            id: vm_id,
            source: Box::new(error),
        },
        Err(again) => {
            tracing::error!(
                vm_id,
                error = chain(&again),
                "the vm of before does not boot"
            );
            actor.enter(VmState::Stopped);
            RestoreError::Stopped {
                id: vm_id,
                source: Box::new(error),
            }
        }
    }
}

/// The VM runs on its restored disk, so the one of before is of no use any more.
async fn forget(vm_id: &str, previous: PathBuf) {
    let removed = tokio::task::spawn_blocking(move || remove(&previous)).await;
    let removed = removed
        .map_err(io::Error::other)
        .and_then(|removed| removed.map_err(io::Error::other));
    if let Err(error) = removed {
        tracing::warn!(
            vm_id,
            error = chain(&error),
            "the disk of before is still there"
        );
    }
}

/// What a restore that was cut short has left, before the VM is booted again: its disk of before is
/// its disk. Blocks.
pub(super) fn settle(meta: &Meta) -> Result<(), FileError> {
    Disks::of(meta).settle()
}

/// As [`settle`], for a VM whose VMM runs: it runs on the disk that has the disk's name.
pub(super) fn clean_up(meta: &Meta) -> Result<(), FileError> {
    let disks = Disks::of(meta);
    remove(&disks.staged)?;
    remove(&disks.previous)
}

/// The files of a restore.
#[derive(Debug, Clone)]
struct Disks {
    current: PathBuf,
    staged: PathBuf,
    previous: PathBuf,
}

impl Disks {
    fn of(meta: &Meta) -> Self {
        let current = meta.disks.overlay.clone();
        Self {
            staged: current.with_extension("restore"),
            previous: current.with_extension("previous"),
            current,
        }
    }

    fn swap(&self) -> Result<(), FileError> {
        rename(&self.current, &self.previous)?;
        rename(&self.staged, &self.current)
    }

    fn settle(&self) -> Result<(), FileError> {
        remove(&self.staged)?;
        if self.previous.exists() {
            rename(&self.previous, &self.current)?;
        }
        Ok(())
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    let renamed = fs::rename(from, to).and_then(|()| sync_parent(to));
    renamed.map_err(failed("replace", to))
}

fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path).map_err(failed("remove", path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("remove", path)(error)),
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent()
        .map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}
