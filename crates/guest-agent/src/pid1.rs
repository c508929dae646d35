//! The life of the guest's first process: boot, serve the host, go down.

use std::process::ExitCode;
use std::sync::Arc;

use fuse_wire_guest::control::PowerAction;
use rustix::system::RebootCommand;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;

use crate::cgroup::{self, Cgroups};
use crate::control::{self, Control, Identity, Transports};
use crate::exec::Executor;
use crate::init::{self, Boot, network};
use crate::power;
use crate::reaper::Reaper;
use crate::surface::supervise::Supervisor;

/// Threads that run requests, at most. None of them blocks, so two are plenty;
/// more than there are CPUs would only hand work to each other.
const MAX_WORKERS: usize = 2;

/// Threads for file system work and starting processes.
const BLOCKING_THREADS: usize = 48;

/// Runs until the guest goes down. If it returns the kernel panics, which ends
/// the VM; by then there is nothing to save.
pub(crate) fn run() -> ExitCode {
    let boot = init::boot();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cpus.min(MAX_WORKERS))
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => runtime.block_on(live(boot)),
        Err(error) => tracing::error!(%error, "the guest agent cannot run"),
    }
    ExitCode::FAILURE
}

async fn live(boot: Boot) {
    let cgroups = boot.cgroups.map(Arc::new);
    let network = network::set_up(boot.params.network.as_ref()).await;
    let network_error = network.err().map(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        format!("{error}{}", cause.unwrap_or_default())
    });
    match &network_error {
        None => tracing::info!("the network is up"),
        Some(error) => tracing::error!(%error, "the guest has no network"),
    }
    let identity = Identity {
        vm_id: boot.params.vm_id,
        boot_id: boot.boot_id,
        error: boot.error.or(network_error),
    };
    let reaper = match Reaper::start() {
        Ok(reaper) => reaper,
        Err(error) => return tracing::error!(%error, "the guest agent cannot collect children"),
    };
    let tasks = TaskTracker::new();
    let (power, mut power_requests) = mpsc::channel(1);
    let ready = identity.ready();
    let control = Control {
        executor: executor(&reaper, cgroups.clone(), &tasks),
        surface: Supervisor::start_task(Arc::clone(&reaper), cgroups.clone(), &tasks),
        freezer: Arc::default(),
        bodies: Arc::new(Semaphore::new(kib(cgroup::reserve_bytes() / 2))),
        identity,
        power,
    };
    let action = match Transports::serve(&control::router(Arc::new(control)), &tasks) {
        Ok(transports) => {
            tracing::info!("the host is served");
            tasks.spawn(control::announce(transports, ready));
            if let Some(cgroups) = cgroups.clone() {
                tasks.spawn(sweep(reaper, cgroups));
            }
            until_told(&mut power_requests).await
        }
        Err(error) => {
            tracing::error!(%error, "the host cannot reach this guest");
            PowerAction::Poweroff
        }
    };
    power::go_down(action, cgroups.as_deref()).await;
}

fn executor(reaper: &Arc<Reaper>, cgroups: Option<Arc<Cgroups>>, tasks: &TaskTracker) -> Executor {
    let output = usize::try_from(cgroup::reserve_bytes() / 3).unwrap_or(usize::MAX);
    Executor::new(Arc::clone(reaper), cgroups, output, tasks.clone())
}

fn kib(bytes: u64) -> usize {
    usize::try_from(bytes / 1024)
        .unwrap_or(Semaphore::MAX_PERMITS)
        .min(Semaphore::MAX_PERMITS)
}

/// Removes the groups of commands whose last background process has ended.
async fn sweep(reaper: Arc<Reaper>, cgroups: Arc<Cgroups>) {
    loop {
        reaper.orphan_ended().await;
        cgroups.sweep();
    }
}

/// Resolves when the host or a signal asks the guest to go down.
async fn until_told(requests: &mut mpsc::Receiver<PowerAction>) -> PowerAction {
    // Lets Ctrl-Alt-Del arrive as a signal instead of resetting at once.
    rustix::system::reboot(RebootCommand::CadOff).ok();
    let term = signal(SignalKind::terminate());
    let interrupt = signal(SignalKind::interrupt());
    let (Ok(mut term), Ok(mut interrupt)) = (term, interrupt) else {
        tracing::warn!("signals to PID 1 are ignored");
        return requests.recv().await.unwrap_or(PowerAction::Poweroff);
    };
    tokio::select! {
        action = requests.recv() => action.unwrap_or(PowerAction::Poweroff),
        _ = term.recv() => PowerAction::Poweroff,
        _ = interrupt.recv() => PowerAction::Reboot,
    }
}
