//! Whether the reconcile loop is getting anywhere.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Intervals without a completed cycle after which the loop counts as stuck.
const PATIENCE: u32 = 5;

/// State of the reconcile loop as this replica sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The first cycle is not over yet.
    Recovering,
    /// Cycles complete, here or on the replica that holds the lease.
    Good,
    /// No cycle has completed for a long time.
    Stale {
        /// Since the last one.
        since: Duration,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Progress {
    last: Mutex<Option<Instant>>,
}

impl Progress {
    /// A cycle ended.
    pub(crate) fn completed(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(crate) fn health(&self, interval: Duration) -> Health {
        match *self.last.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Health::Recovering,
            Some(at) if at.elapsed() > interval * PATIENCE => Health::Stale {
                since: at.elapsed(),
            },
            Some(_) => Health::Good,
        }
    }
}
