//! How long the steps of a create take.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuse_wire_host::CreateTimings;

/// A stopwatch for one create. Steps that run side by side may write to it.
#[derive(Debug)]
pub(super) struct Timings {
    begun: Instant,
    steps: Mutex<BTreeMap<&'static str, Duration>>,
}

/// Step names that are totals of their own in the answer.
pub(super) const QUEUED: &str = "queued";
/// From the boot command to the guest's answer.
pub(super) const BOOT: &str = "boot";
/// Everything before the VMM is told to boot, without waiting for a turn.
pub(super) const HOST: &str = "host";

impl Timings {
    pub(super) fn start() -> Self {
        Self {
            begun: Instant::now(),
            steps: Mutex::default(),
        }
    }

    pub(super) async fn measure<T>(&self, name: &'static str, work: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let result = work.await;
        self.note(name, begun.elapsed());
        result
    }

    pub(super) fn note(&self, name: &'static str, took: Duration) {
        self.steps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name, took);
        tracing::debug!(step = name, elapsed_ms = millis(took), "create step done");
    }

    /// Notes the time since the start.
    pub(super) fn note_since_start(&self, name: &'static str) {
        self.note(name, self.begun.elapsed());
    }

    pub(super) fn report(&self) -> CreateTimings {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |name: &str| steps.get(name).copied().map_or(0.0, millis);
        let totals = [QUEUED, BOOT, HOST];
        let rest = steps.iter().filter(|(name, _)| !totals.contains(name));
        CreateTimings {
            host: one(HOST),
            queued: one(QUEUED),
            boot: one(BOOT),
            total: millis(self.begun.elapsed()),
            steps: rest
                .map(|(name, took)| ((*name).to_owned(), millis(*took)))
                .collect(),
        }
    }
}

fn millis(duration: Duration) -> f64 {
    // Microseconds are enough, and keep the numbers short.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
