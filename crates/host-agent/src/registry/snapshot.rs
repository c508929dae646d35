//! Taking a snapshot.
//!
//! Of the disk: the guest writes everything back and holds still (`freeze`) while its overlay is
//! copied; its programs go on reading and computing. A guest that cannot hold still for long enough
//! is paused instead. Live: the machine is paused once, and in that window its memory is written and
//! its overlay copied side by side. Whatever fails, the guest goes on: it is resumed here, a freeze
//! ends by itself, and an agent that is killed meanwhile resumes at its next start.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fuse_wire_host::{Snapshot, SnapshotKind, SnapshotRequest, VmState};
use tokio::sync::oneshot;

use super::actor::Actor;
use super::clock;
use super::error::{LeaseError, SnapshotError};
use crate::disk::sealed::{self, SealError, Sealed};
use crate::disk::space;
use crate::fail_point::place;
use crate::report::chain;
use crate::snapshot::{Staged, Stored};
use crate::vmm::VmmError;
use crate::vmm::process::log_tail;

/// How long a guest holds its disk still. A copy that takes longer is made again of a paused one.
const HOLD: Duration = Duration::from_secs(20);
/// How long a guest may take to write everything back.
const FLUSH_LIMIT: Duration = Duration::from_secs(20);
/// Bound of ending a freeze.
const THAW_LIMIT: Duration = Duration::from_secs(5);
/// Bound of letting a machine go on.
const RESUME_LIMIT: Duration = Duration::from_secs(20);
/// How often a paused machine is told to go on before it is given up.
const RESUME_TRIES: usize = 3;

/// What was taken.
struct Taken {
    disk: Sealed,
    pause: Option<Duration>,
}

/// Takes a snapshot of the actor's VM.
pub(super) async fn take(
    actor: &Actor,
    request: SnapshotRequest,
) -> Result<Snapshot, SnapshotError> {
    running(actor)?;
    let kind = match request.live {
        Some(true) => SnapshotKind::Live,
        Some(false) | None => SnapshotKind::Disk,
    };
    ensure_room(actor, kind)?;
    let store = Arc::clone(&actor.host.snapshots);
    let wanted = request.snapshot_id.clone();
    if let Some(id) = wanted.as_ref().filter(|id| store.get(id).is_some()) {
        return Err(SnapshotError::Exists { id: id.clone() });
    }
    let staging = tokio::task::spawn_blocking(move || match wanted {
        Some(id) => store.stage_as(id),
        None => store.stage(),
    });
    let staged = staging.await?.map_err(SnapshotError::Store)?;
    let taken = match kind {
        SnapshotKind::Disk => disk(actor, &staged).await?,
        SnapshotKind::Live => {
            let taken = live(actor, &staged).await;
            taken.map_err(|error| filled_up(actor, &staged, error))?
        }
    };
    let millis = |pause: Duration| (pause.as_secs_f64() * 1e6).round() / 1e3;
    let meta = &actor.meta;
    let stored = Stored {
        view: Snapshot {
            digest: taken.disk.digest,
            kind,
            comment: request.comment.unwrap_or_default(),
            origin_vm_id: meta.vm_id.clone(),
            base_digest: Some(meta.disks.image_digest.clone()),
            pause_ms: taken.pause.map(millis),
            copied_bytes: Some(taken.disk.copied),
            ..Snapshot::default()
        },
        storage_gb: meta.spec.storage_gb,
        index: meta.slot.index,
        boot_id: meta.boot_id.clone(),
        guest_version: meta.guest_version.clone(),
        blocks: Some(taken.disk.blocks),
        source_peer: None,
    };
    let store = Arc::clone(&actor.host.snapshots);
    let commit = tokio::task::spawn_blocking(move || store.commit(&staged, stored));
    let view = commit.await?.map_err(SnapshotError::Store)?;
    let (vm_id, id) = (&meta.vm_id, &view.snapshot_id);
    tracing::info!(vm_id, snapshot_id = id, kind = ?view.kind, pause_ms = view.pause_ms, "snapshot taken");
    Ok(view)
}

fn running(actor: &Actor) -> Result<(), SnapshotError> {
    let id = actor.meta.vm_id.clone();
    let error = match actor.vm.state() {
        VmState::Running => return Ok(()),
        VmState::Creating | VmState::Booting => LeaseError::Booting { id },
        VmState::Deleting => LeaseError::Deleted { id },
        VmState::Stopped | VmState::Unknown => LeaseError::Stopped {
            log: log_tail(actor.vm.log()),
            id,
        },
    };
    Err(SnapshotError::Lease(error))
}

/// Nothing is begun that is known not to fit.
fn ensure_room(actor: &Actor, kind: SnapshotKind) -> Result<(), SnapshotError> {
    let floor = actor.host.config.vms.min_free_mib;
    let needed = most_bytes(actor, kind);
    space::ensure_room(actor.host.snapshots.dir(), needed, floor).map_err(SnapshotError::Space)
}

/// What a snapshot may take.
fn most_bytes(actor: &Actor, kind: SnapshotKind) -> u64 {
    let memory = match kind {
        SnapshotKind::Disk => 0,
        SnapshotKind::Live => u64::from(actor.meta.spec.memory_mb) << 20,
    };
    memory + space::stored_bytes(&actor.meta.disks.overlay)
}

/// Says so if a live snapshot failed because it does not fit any more. No VMM says that in a way that
/// could be told apart from its other failures, so the room that there is has to.
fn filled_up(actor: &Actor, staged: &Staged, error: SnapshotError) -> SnapshotError {
    if !matches!(error, SnapshotError::Vmm(_) | SnapshotError::Copy(_)) {
        return error;
    }
    let files = staged.files().of_kind(SnapshotKind::Live);
    let written: u64 = files.iter().map(|file| space::stored_bytes(file)).sum();
    let left = most_bytes(actor, SnapshotKind::Live).saturating_sub(written);
    let free = space::free_bytes(actor.host.snapshots.dir());
    let missing = free.map_or(0, |free| left.saturating_sub(free));
    if missing == 0 {
        return error;
    }
    SnapshotError::Full {
        missing_mib: missing.div_ceil(1 << 20),
        source: Box::new(error),
    }
}

async fn disk(actor: &Actor, staged: &Staged) -> Result<Taken, SnapshotError> {
    let vm_id = &actor.meta.vm_id;
    match actor.vm.guest.freeze(HOLD, FLUSH_LIMIT).await {
        Ok(()) => {
            place("snapshot: frozen");
            let (copied, held) = copy(actor, staged, thaw(actor)).await;
            place("snapshot: thawed");
            let disk = copied?;
            if held {
                return Ok(Taken { disk, pause: None });
            }
            tracing::warn!(vm_id, "the guest did not hold its disk still; pausing it");
            discard(staged).await?;
        }
        Err(error) => {
            let error = chain(&error);
            tracing::warn!(
                vm_id,
                error,
                "the guest cannot hold its disk still; pausing it"
            );
        }
    }
    paused_disk(actor, staged).await
}

/// The copy that was made in vain.
async fn discard(staged: &Staged) -> Result<(), SnapshotError> {
    let overlay = staged.files().overlay();
    let removed = tokio::fs::remove_file(&overlay).await;
    let failed = crate::file_error::failed("remove", &overlay);
    removed.map_err(|e| SnapshotError::Store(failed(e)))
}

async fn paused_disk(actor: &Actor, staged: &Staged) -> Result<Taken, SnapshotError> {
    // Frozen for the moment of the pause only, so that nothing unwritten is lost if it can be helped.
    let frozen = actor.vm.guest.freeze(HOLD, FLUSH_LIMIT).await.is_ok();
    let begun = Instant::now();
    let paused = pause(actor).await;
    let release = async {
        let resumed = resume(actor).await;
        if frozen {
            thaw(actor).await;
        }
        resumed.map(|()| begun.elapsed())
    };
    if let Err(error) = paused {
        release.await?;
        return Err(error);
    }
    let (disk, resumed) = copy(actor, staged, release).await;
    clock::set_soon(&actor.host, &actor.vm).await;
    let pause = Some(resumed?);
    Ok(Taken { disk: disk?, pause })
}

async fn live(actor: &Actor, staged: &Staged) -> Result<Taken, SnapshotError> {
    // The disk half is forked without the memory half: what is unwritten would be missing in it.
    if let Err(error) = actor.vm.guest.freeze(Duration::ZERO, FLUSH_LIMIT).await {
        let vm_id = &actor.meta.vm_id;
        tracing::warn!(
            vm_id,
            error = chain(&error),
            "the guest does not write back"
        );
    }
    let begun = Instant::now();
    if let Err(error) = pause(actor).await {
        resume(actor).await?;
        return Err(error);
    }
    place("snapshot: paused");
    let sockets = actor.sockets();
    let files = staged.files();
    let memory = async {
        let saved = actor.host.vmm.save(&sockets, &files).await;
        place("snapshot: saved");
        saved.map_err(SnapshotError::Vmm)
    };
    let (held, disk_held) = oneshot::channel();
    let disk = copy_until_held(actor, staged, held);
    let window = async {
        // Closed without a word when the copy has failed.
        let (saved, _held) = tokio::join!(memory, disk_held);
        (saved, resume(actor).await.map(|()| begun.elapsed()))
    };
    let both = async { tokio::join!(disk, window) };
    let (disk, (saved, resumed)) = tokio::select! {
        both = both => both,
        // The program is about to be ended, whatever it is writing.
        () = actor.vm.stop.cancelled() => {
            let id = actor.meta.vm_id.clone();
            return Err(SnapshotError::Lease(LeaseError::Deleted { id }));
        }
    };
    place("snapshot: resumed");
    clock::set_soon(&actor.host, &actor.vm).await;
    let pause = Some(resumed?);
    saved?;
    Ok(Taken { disk: disk?, pause })
}

/// Copies the disk, and runs `release` as soon as the guest may go on, in every case.
async fn copy<T>(
    actor: &Actor,
    staged: &Staged,
    release: impl Future<Output = T>,
) -> (Result<Sealed, SnapshotError>, T) {
    let (held, disk_held) = oneshot::channel();
    let release = async {
        let _or_failed = disk_held.await;
        release.await
    };
    tokio::join!(copy_until_held(actor, staged, held), release)
}

/// Copies the disk; `held` is told, or dropped, when it may change again. A delete or the agent's
/// end cuts it short.
async fn copy_until_held(
    actor: &Actor,
    staged: &Staged,
    held: oneshot::Sender<()>,
) -> Result<Sealed, SnapshotError> {
    let (from, to) = (actor.meta.disks.overlay.clone(), staged.files().overlay());
    let cancel = CancelOnDrop::default();
    let flag = Arc::clone(&cancel.0);
    let work = move || {
        sealed::copy(&from, &to, &flag, || {
            let _nobody_waits = held.send(());
        })
    };
    let mut copy = tokio::task::spawn_blocking(work);
    let id = || actor.meta.vm_id.clone();
    let interrupted = tokio::select! {
        copied = &mut copy => {
            return copied?.map_err(|error| match error {
                SealError::Cancelled => SnapshotError::Lease(LeaseError::Deleted { id: id() }),
                error => SnapshotError::Copy(error),
            });
        }
        () = actor.vm.stop.cancelled() => SnapshotError::Lease(LeaseError::Deleted { id: id() }),
        () = actor.host.shutdown.cancelled() => SnapshotError::ShuttingDown { id: id() },
    };
    drop(cancel);
    let _cancelled = copy.await;
    Err(interrupted)
}

/// Ends a copy that nobody waits for any more.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn thaw(actor: &Actor) -> bool {
    match actor.vm.guest.thaw(THAW_LIMIT).await {
        Ok(held) => held,
        Err(error) => {
            let vm_id = &actor.meta.vm_id;
            tracing::warn!(
                vm_id,
                error = chain(&error),
                "the guest was not told to thaw"
            );
            false
        }
    }
}

async fn pause(actor: &Actor) -> Result<(), SnapshotError> {
    let paused = actor.host.vmm.pause(&actor.sockets()).await;
    paused.map_err(SnapshotError::Vmm)
}

/// Lets a machine go on that an agent which was killed may have left paused, in the middle of writing
/// its memory, or with its disk held still.
pub(super) async fn resume_adopted(actor: &Actor) {
    let limit = actor.host.config.vms.memory_limit;
    let sockets = actor.sockets();
    let resumed = tokio::select! {
        resumed = actor.host.vmm.resume(&sockets, limit) => resumed,
        () = actor.vm.stop.cancelled() => return,
        () = actor.host.shutdown.cancelled() => return,
    };
    if let Err(error) = resumed {
        let vm_id = &actor.meta.vm_id;
        tracing::error!(vm_id, error = chain(&error), "the machine may stay paused");
    }
    tokio::select! {
        thawed = actor.vm.guest.thaw(THAW_LIMIT) => {
            let vm_id = &actor.meta.vm_id;
            tracing::debug!(vm_id, ?thawed, "the disk is not held still");
            // Its clock stood still for as long as nobody was there.
            clock::set_later(&actor.host, &actor.vm);
        }
        () = actor.vm.stop.cancelled() => {}
        () = actor.host.shutdown.cancelled() => {}
    }
}

/// Lets the machine go on.
async fn resume(actor: &Actor) -> Result<(), SnapshotError> {
    let mut last: Option<VmmError> = None;
    for _ in 0..RESUME_TRIES {
        match actor.host.vmm.resume(&actor.sockets(), RESUME_LIMIT).await {
            Ok(()) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    let Some(source) = last else { return Ok(()) };
    let id = actor.meta.vm_id.clone();
    tracing::error!(
        vm_id = id,
        error = chain(&source),
        "the machine stays paused"
    );
    Err(SnapshotError::NotResumed { id, source })
}
