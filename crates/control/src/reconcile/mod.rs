//! The reconcile driver: makes the table and the hosts agree, and picks up operations
//! that were interrupted.
//!
//! One replica does it at a time, whoever holds the `reconcile` lease. Its first cycle
//! with the lease is the recovery. Every decision is the planner's; here they are
//! carried out, each guarded by the version of its record, so that a holder who has
//! lost the lease without noticing cannot overwrite anything.

mod carry_out;
mod cycle;
mod evict;
mod interrupted;
mod limits;
mod pauses;
mod preview;
mod progress;
mod prune;
mod recovered;
mod renew;
mod set_up;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use fuse_planner::{Ages, AtBoot, Memory, Strangers, Strikes};
use fuse_store::{Lease, StoreError};
use jiff::Timestamp;

use crate::{Control, error::chain};

pub use preview::{Preview, PreviewStep};
pub use progress::Health;

pub(crate) use evict::Evicting;
pub(crate) use progress::Progress;
pub(crate) use renew::Renewing;

/// Name of the lease.
const LEASE: &str = "reconcile";
/// Shortest life of the lease; it is renewed three times in that.
const MIN_LEASE_TTL: Duration = Duration::from_secs(60);
/// How often the holder looks for interrupted operations between two cycles.
const LOOK_FOR_INTERRUPTED: Duration = Duration::from_secs(5);
/// Shortest pause between two cycles while something is about to change; it doubles up
/// to the interval.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Work on different environments that a cycle does side by side.
const PARALLEL: usize = 16;

/// What the holder of the lease remembers between cycles.
#[derive(Debug, Default)]
struct State {
    /// The tenure that the memory belongs to.
    epoch: Option<i64>,
    memory: Memory,
    /// What was on the hosts before this process; kept where the store began with it.
    strangers: Option<Strangers>,
    /// VMs of others that were seen in the last cycle.
    foreign: BTreeSet<(String, String)>,
    stuck: Strikes,
    idle: Strikes,
    /// What this process has measured, whoever held the lease meanwhile.
    ages: Ages,
    /// When limits were looked at; their strikes are counted once per interval.
    limits_at: Option<Instant>,
    /// The pause before this cycle, if it was not a whole interval.
    short_pause: Option<Duration>,
}

impl Control {
    /// Runs until shutdown.
    pub(crate) async fn reconcile_loop(&self) {
        let mut state = State {
            strangers: self.strangers(),
            ..State::default()
        };
        let stop = self.stop_token().clone();
        while !stop.is_cancelled() {
            tokio::select! {
                () = self.turn(&mut state) => {}
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = self.until_next_turn(&state) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// A store that outlives its process knows its VMs by their tag, and needs none.
    fn strangers(&self) -> Option<Strangers> {
        let destroy = self.inner.settings.destroy_unknown_on_boot;
        if self.inner.store.engine().is_durable() {
            if destroy {
                tracing::warn!(
                    "ORCH_DESTROY_UNKNOWN_ON_BOOT is for stores in memory and does nothing here: \
                     VMs of this database without a record are destroyed anyway, others never"
                );
            }
            return None;
        }
        Some(Strangers::new(match destroy {
            true => AtBoot::Destroy,
            false => AtBoot::Quarantine,
        }))
    }

    /// Whether this replica is the one that looks after the fleet. Taking the lease here
    /// too is harmless: it is the same holder, and its epoch moves only with that.
    pub(crate) async fn holds_reconcile_lease(&self) -> Result<bool, StoreError> {
        let lease = self
            .inner
            .store
            .lease_acquire(LEASE, self.lease_ttl())
            .await?;
        Ok(lease.is_some())
    }

    /// One cycle, if the lease can be had.
    async fn turn(&self, state: &mut State) {
        self.check_keys_again().await;
        let asked_at = self.inner.store.now();
        match self
            .inner
            .store
            .lease_acquire(LEASE, self.lease_ttl())
            .await
        {
            Ok(Some(lease)) => self.cycle_with(state, &lease, asked_at).await,
            Ok(None) => {
                // Another replica looks after the fleet.
                if state.epoch.take().is_some() {
                    self.watch_nothing();
                }
                self.inner.metrics.follow();
                self.inner.progress.completed();
            }
            Err(e) => log(&e, "cannot take the reconcile lease"),
        }
    }

    async fn cycle_with(&self, state: &mut State, lease: &Lease, asked_at: Timestamp) {
        let recovery = (state.epoch != Some(lease.epoch)).then_some(asked_at);
        if recovery.is_some() {
            *state = State {
                epoch: Some(lease.epoch),
                strangers: state.strangers.take(),
                ages: std::mem::take(&mut state.ages),
                ..State::default()
            };
        }
        let metrics = &self.inner.metrics;
        metrics.cycle.leader.set(1);
        metrics.cycle.count.inc();
        // Observes when it is dropped, so also for a cycle that did not get to its end.
        let timer = metrics.cycle.seconds.start_timer();
        let outcome = tokio::select! {
            outcome = self.cycle(state, recovery) => outcome,
            () = self.keep_lease(lease) => {
                tracing::warn!("lost the reconcile lease in the middle of a cycle");
                state.epoch = None;
                metrics.follow();
                return;
            }
        };
        drop(timer);
        match outcome {
            Ok(unsettled) => {
                self.inner.progress.completed();
                metrics
                    .cycle
                    .last_success
                    .set(self.inner.store.now().as_duration().as_secs_f64());
                state.short_pause = self.next_pause(state.short_pause, unsettled);
            }
            Err(e) => {
                log(&e, "a reconcile cycle failed");
                state.short_pause = self.next_pause(state.short_pause, true);
                if recovery.is_some() {
                    // The next cycle has to be a recovery too.
                    state.epoch = None;
                }
            }
        }
        self.show_hosts().await;
        self.prune().await;
        if let Err(e) = self.collect_snapshots().await {
            log(&e, "cannot collect snapshots");
        }
        if let Err(e) = self.collect_layers().await {
            log(&e, "cannot collect layers");
        }
    }

    async fn show_hosts(&self) {
        match self.inner.store.host_list_all().await {
            Ok(hosts) => {
                self.inner.metrics.show_hosts(&hosts);
            }
            Err(e) => log(&e, "cannot read the hosts for their metrics"),
        }
    }

    /// Completes when the lease is lost.
    async fn keep_lease(&self, lease: &Lease) {
        loop {
            tokio::time::sleep(self.lease_ttl() / 3).await;
            match self
                .inner
                .store
                .lease_acquire(LEASE, self.lease_ttl())
                .await
            {
                Ok(Some(renewed)) if renewed.epoch == lease.epoch => {}
                Ok(_) => return,
                Err(e) => log(&e, "cannot renew the reconcile lease"),
            }
        }
    }

    /// `None` is a whole interval.
    fn next_pause(&self, last: Option<Duration>, unsettled: bool) -> Option<Duration> {
        let interval = self.inner.settings.reconcile_interval;
        unsettled
            .then(|| last.map_or(SHORTEST_PAUSE, |pause| pause * 2))
            .map(|pause| pause.min(interval))
    }

    /// Waits for the next cycle and picks up interrupted operations meanwhile.
    async fn until_next_turn(&self, state: &State) {
        let interval = self.inner.settings.reconcile_interval;
        let next = tokio::time::sleep(state.short_pause.unwrap_or(interval));
        tokio::pin!(next);
        loop {
            tokio::select! {
                () = &mut next => return,
                () = self.inner.wake.notified() => return,
                () = tokio::time::sleep(LOOK_FOR_INTERRUPTED) => {}
            }
            if state.epoch.is_some()
                && let Err(e) = self.pick_up_interrupted().await
            {
                log(&e, "cannot look for interrupted operations");
            }
        }
    }

    fn lease_ttl(&self) -> Duration {
        (self.inner.settings.reconcile_interval * 2).max(MIN_LEASE_TTL)
    }

    /// How the loop is doing, for the readiness probe.
    #[must_use]
    pub fn reconcile_health(&self) -> Health {
        self.inner
            .progress
            .health(self.inner.settings.reconcile_interval)
    }

    /// Starts a reconcile cycle now.
    pub fn reconcile_now(&self) {
        self.inner.wake.notify_one();
    }
}

fn log(error: &StoreError, what: &'static str) {
    tracing::warn!(error = %chain(error), "{what}");
}
