//! Guests' clocks.
//!
//! A guest has no other source of time than its host. It is told when it boots and when it goes on
//! from a snapshot (`bring_up`), after it was paused (`snapshot`), when the host's own clock was set
//! or the host was suspended, and now and then, because no two clocks run alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse_wire_host::VmState;
use futures_util::StreamExt as _;

use super::Registry;
use super::host::Host;
use super::vm::Vm;
use crate::guest::{GuestClient, GuestError};
use crate::report::chain;

/// A clock that is off by less is left alone: setting it disturbs whoever measures by it.
const TOLERANCE: Duration = Duration::from_millis(10);
/// What was told is late by as long as the exchange took; one that took longer is repeated.
const QUICK: Duration = Duration::from_millis(50);
/// How often. A guest on a busy host may never be quick, and nearly right is better than not told.
const TRIES: usize = 5;
/// Bound of one exchange.
const LIMIT: Duration = Duration::from_secs(1);
/// Pause before a guest that does not answer is told again: there is no event for it.
const PAUSE: Duration = if cfg!(test) {
    Duration::from_millis(1)
} else {
    Duration::from_secs(1)
};
/// How long the others of all guests wait for one.
const PATIENCE: Duration = Duration::from_secs(60);
/// Guests that are told at a time.
const AT_A_TIME: usize = 16;

/// Sets a guest's clock.
pub(super) async fn set(guest: &GuestClient) -> Result<(), GuestError> {
    for _ in 0..TRIES {
        let begun = Instant::now();
        guest.set_clock(TOLERANCE, LIMIT).await?;
        if begun.elapsed() <= QUICK {
            break;
        }
    }
    Ok(())
}

/// Sets it again if the exchange that began then, and has told the time, took too long.
pub(super) async fn correct(guest: &GuestClient, begun: Instant) -> Result<(), GuestError> {
    if begun.elapsed() <= QUICK {
        return Ok(());
    }
    set(guest).await
}

/// Sets a guest's clock, in the background if the guest does not answer at once.
pub(super) async fn set_soon(host: &Arc<Host>, vm: &Arc<Vm>) {
    if let Err(error) = set(&vm.guest).await {
        let error = chain(&error);
        tracing::warn!(vm_id = vm.id, error, "the guest's clock is behind");
        set_later(host, vm);
    }
}

/// Sets a guest's clock in the background.
pub(super) fn set_later(host: &Arc<Host>, vm: &Arc<Vm>) {
    let (host, vm) = (Arc::clone(host), Arc::clone(vm));
    let tasks = host.tasks.clone();
    tasks.spawn(async move { until_set(&host, &vm).await });
}

/// Sets a guest's clock as soon as the guest can be told, as long as its VM runs.
async fn until_set(host: &Host, vm: &Vm) {
    let told = async {
        loop {
            match set(&vm.guest).await {
                Ok(()) => return,
                Err(error @ (GuestError::Refused { .. } | GuestError::Failed { .. })) => {
                    let error = chain(&error);
                    tracing::warn!(vm_id = vm.id, error, "the guest keeps its clock");
                    return;
                }
                Err(_unheard) => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    tokio::select! {
        () = told => {}
        () = vm.ended() => {}
        () = host.shutdown.cancelled() => {}
    }
}

impl Registry {
    /// Sets the clocks of all guests that run. One that cannot be told for a while is left for the
    /// next time.
    pub async fn set_clocks(&self) {
        let vms = self.host.tables.all().into_iter();
        let running = vms.filter(|vm| vm.state() == VmState::Running);
        let host = &self.host;
        futures_util::stream::iter(running)
            .for_each_concurrent(AT_A_TIME, |vm| async move {
                let told = tokio::time::timeout(PATIENCE, until_set(host, &vm)).await;
                if told.is_err() {
                    tracing::warn!(vm_id = vm.id, "the guest does not hear what time it is");
                }
            })
            .await;
    }
}
