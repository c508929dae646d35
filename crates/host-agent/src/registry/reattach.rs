//! Taking charge of what an earlier agent left.
//!
//! Finished VMs come back: those whose VMM still runs (same pid, same start time, control socket
//! served) are adopted untouched, the others are booted again with the same id, addresses and ports.
//! Unfinished creates and deletes are removed. Packet rules are written anew for all finished VMs
//! before anything else runs, in one transaction.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse_wire_host::VmState;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::actor::Actor;
use super::host::{Host, HostError, HostParts, binding, cgroups};
use super::journal::Journal;
use super::logs::Failures;
use super::meta::{Found, Meta, Metas, Phase};
use super::tables::Tables;
use super::vm::Vm;
use crate::artifact::Artifacts;
use crate::config::Config;
use crate::disk::{Images, Overlays};
use crate::gpu::Recarve;
use crate::metrics::Metrics;
use crate::net::{Firewall, Links};
use crate::report::chain;
use crate::snapshot::Snapshots;
use crate::vmm::Process;
use crate::vmm::process::of_session;

/// How long to wait for the state directory.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// Pause between two tries to lock it.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

pub(super) async fn start(parts: HostParts) -> Result<Arc<Host>, HostError> {
    let lock = lock(&parts.config.paths.state).await?;
    let metas = Metas::open(parts.config.paths.state.join("vms")).map_err(HostError::Metas)?;
    let State {
        finished,
        unfinished,
        damaged,
    } = sort(&metas)?;
    let host = Arc::new(open(parts, lock, metas, &finished).await?);
    for name in damaged {
        host.tables.mark_damaged(name);
    }
    for meta in unfinished {
        sweep(&host, meta).await;
    }
    remove_stale_taps(&host, &finished).await?;
    remove_stale_groups(&host, &finished).await;
    for meta in finished {
        take_over(&host, meta).await;
    }
    warm_up(&host);
    Ok(host)
}

struct State {
    finished: Vec<Meta>,
    unfinished: Vec<Meta>,
    damaged: Vec<String>,
}

fn sort(metas: &Metas) -> Result<State, HostError> {
    let mut state = State {
        finished: Vec::new(),
        unfinished: Vec::new(),
        damaged: Vec::new(),
    };
    for found in metas.load().map_err(HostError::Metas)? {
        match found {
            Found::Vm(meta) => match meta.phase {
                Phase::Ready => state.finished.push(*meta),
                Phase::Creating | Phase::Deleting => state.unfinished.push(*meta),
            },
            Found::Damaged { name, error } => {
                let error = chain(&error);
                tracing::error!(name, error, "not a vm; look at it and remove it by hand");
                state.damaged.push(name);
            }
        }
    }
    Ok(state)
}

async fn open(
    parts: HostParts,
    lock: File,
    metas: Metas,
    finished: &[Meta],
) -> Result<Host, HostError> {
    let HostParts {
        config,
        public_host,
        vmm,
        nft,
        mkfs,
    } = parts;
    let state = &config.paths.state;
    let (base, named) = (config.paths.base.clone(), config.paths.images.clone());
    let (store, extension) = (state.join("images"), config.backend.image_extension);
    let images = Images::new(base, named, store, extension).map_err(HostError::Images)?;
    let overlays = Overlays::new(state.join("templates"), mkfs).map_err(HostError::Overlays)?;
    let snapshots = config.paths.snapshots.clone();
    let snapshots = tokio::task::spawn_blocking(|| Snapshots::open(snapshots)).await;
    let snapshots = snapshots.map_err(|lost| HostError::State {
        dir: state.clone(),
        source: std::io::Error::other(lost),
    })?;
    let snapshots = snapshots.map_err(HostError::Snapshots)?;
    let (images, snapshots) = (Arc::new(images), Arc::new(snapshots));
    let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
    let artifacts = {
        let (snapshots, images) = (Arc::clone(&snapshots), Arc::clone(&images));
        Artifacts::open(&config, snapshots, images, tasks.clone(), shutdown.clone())
            .map_err(HostError::Artifacts)?
    };
    let cgroups = cgroups(&config)?;
    let links = Links::open().map_err(HostError::Links)?;
    links.enable_forwarding().await.map_err(HostError::Links)?;
    // The table goes in with the rules of all VMs: a moment without them would cut connections.
    let bindings: Vec<_> = finished.iter().map(|meta| binding(&config, meta)).collect();
    let (table, subnet) = (&config.net.table, config.net.plan.subnet());
    let firewall = Firewall::start(nft, table, &subnet, bindings)
        .await
        .map_err(HostError::Firewall)?;
    Ok(Host {
        public_host,
        vmm,
        images,
        overlays: Arc::new(overlays),
        snapshots,
        artifacts,
        metas: Arc::new(metas),
        links,
        firewall,
        recarve: Recarve::new(mig_setup(&config)),
        cgroups,
        tables: Tables::default(),
        boot_turns: Semaphore::new(cpus()),
        tasks,
        shutdown,
        metrics: Metrics::new(config.backend.app_name).map_err(HostError::Metrics)?,
        failures: Failures::default(),
        _lock: lock,
        #[cfg(test)]
        faults: super::journal::Faults::default(),
        config,
    })
}

/// What applies the layout of partitioned cards again.
fn mig_setup(config: &Config) -> Option<PathBuf> {
    config.qemu.as_ref()?.gpus.mig_setup.clone()
}

/// Guests that may boot at a time.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Takes the state directory. An agent that is just ending, or a child it was just starting, may
/// hold it a moment longer.
pub(super) async fn lock(state: &Path) -> Result<File, HostError> {
    let failed = |source| HostError::State {
        dir: state.to_owned(),
        source,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)
        .map_err(failed)?;
    let file = File::create(state.join("lock")).map_err(failed)?;
    let given_up = Instant::now() + LOCK_LIMIT;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < given_up => {
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(HostError::Locked {
                    dir: state.to_owned(),
                });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}

/// Removes what an unfinished create or delete left. What cannot be removed stays visible as a VM
/// that is being deleted, so that a delete can go on with it.
async fn sweep(host: &Arc<Host>, meta: Meta) {
    match Journal::all().undo(host, &meta).await {
        Ok(()) => tracing::warn!(vm_id = meta.vm_id, phase = ?meta.phase, "unfinished vm removed"),
        Err(error) => {
            tracing::error!(
                vm_id = meta.vm_id,
                error = chain(&error),
                "unfinished vm not removed"
            );
            enter(host, meta, VmState::Deleting, |actor| {
                host.tasks.spawn(actor.serve())
            });
        }
    }
}

/// Devices of the agent's own prefix that belong to no VM.
async fn remove_stale_taps(host: &Host, finished: &[Meta]) -> Result<(), HostError> {
    let prefix = host.config.net.plan.tap_prefix();
    for tap in host
        .links
        .with_prefix(prefix)
        .await
        .map_err(HostError::Links)?
    {
        if finished.iter().all(|meta| meta.slot.tap != tap) {
            host.links.remove(&tap).await.map_err(HostError::Links)?;
            tracing::warn!(tap, "stale tap device removed");
        }
    }
    Ok(())
}

/// Control groups of the agent's own that belong to no VM, with whatever runs in them.
async fn remove_stale_groups(host: &Host, finished: &[Meta]) {
    for id in host.cgroups.known() {
        let is_finished = finished.iter().any(|meta| meta.vm_id == id);
        if is_finished || host.tables.has(&id) {
            continue;
        }
        match host.cgroups.group(&id).removed().await {
            Ok(()) => tracing::warn!(vm_id = id, "stale control group removed"),
            Err(error) => tracing::error!(vm_id = id, error = chain(&error), "stale control group"),
        }
    }
}

/// Puts a VMM that was found running under today's limits, wherever an earlier agent had it.
fn limit_adopted(host: &Host, meta: &Meta, process: &Process) {
    let pid = process.id().pid;
    let limited = host.cgroups.make(&meta.vm_id, &host.limits(meta));
    let limited = limited.and_then(|group| match group.holds(pid) {
        true => Ok(()),
        // Its helpers too; finding them means looking at every process of the host.
        false => group.adopt(&of_session(pid)),
    });
    if let Err(error) = limited {
        let vm_id = &meta.vm_id;
        tracing::warn!(
            vm_id,
            error = chain(&error),
            "adopted vm keeps the limits it had"
        );
    }
}

async fn take_over(host: &Arc<Host>, meta: Meta) {
    match running(host, &meta).await {
        Some(process) => {
            limit_adopted(host, &meta, &process);
            enter(host, meta, VmState::Running, |actor| {
                host.tasks.spawn(actor.adopted(process))
            });
        }
        None => enter(host, meta, VmState::Booting, |actor| {
            host.tasks.spawn(actor.boot_again())
        }),
    }
}

/// The VM's VMM if it runs and serves its socket. One that runs but does not is ended, because it
/// holds the VM's disk.
async fn running(host: &Host, meta: &Meta) -> Option<Process> {
    let process = match Process::find(meta.process?) {
        Ok(process) => process?,
        Err(error) => {
            tracing::error!(vm_id = meta.vm_id, %error, "cannot look at the VMM");
            return None;
        }
    };
    let sockets = host.vmm.sockets(&meta.vm_id, &host.metas.dir(&meta.vm_id));
    if host.vmm.serves(&sockets).await {
        return Some(process);
    }
    if let Err(error) = process.kill().await {
        tracing::error!(vm_id = meta.vm_id, %error, "cannot end a VMM that does not answer");
    }
    None
}

fn enter<T>(host: &Arc<Host>, meta: Meta, state: VmState, run: impl FnOnce(Actor) -> T) {
    let (vm, mailbox) = Vm::new(host, &meta, state);
    host.tables.enter(&meta, Arc::clone(&vm));
    run(Actor {
        host: Arc::clone(host),
        vm,
        meta,
        mailbox,
        process: None,
    });
}

/// Reads the default image and makes the default overlay's template before the first create needs
/// them. A failure shows there, with the request that needs it.
fn warm_up(host: &Arc<Host>) {
    let (images, overlays) = (Arc::clone(&host.images), Arc::clone(&host.overlays));
    let gib = host.config.vms.storage_gib;
    host.tasks.spawn(async move {
        let work = move || {
            if let Err(error) = images.resolve(None) {
                tracing::warn!(error = chain(&error), "the default image is not usable");
            }
            if let Err(error) = overlays.prepare(gib) {
                tracing::warn!(error = chain(&error), "no overlay template");
            }
        };
        if let Err(error) = tokio::task::spawn_blocking(work).await {
            tracing::warn!(%error, "warm-up lost");
        }
    });
}
