//! The phase that a connection is in, shared by its I/O (which enforces the deadlines)
//! and its requests (which move it on).
//!
//! ```text
//!  Head ──request parsed──> Busy ──response over──> Idle ──first byte──> Head
//!                          └──upgraded──> Upgraded, for good
//! ```
//! `Head` and `Idle` bound reading, `Busy` bounds writing once a response has started, and an
//! upgraded connection has no bounds at all.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use super::Timeouts;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Head,
    Busy,
    Idle,
    Upgraded,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// When the current read must have made it to the next phase.
    read_by: Option<Instant>,
    /// When the current response must be out.
    written_by: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Clock {
    timeouts: Timeouts,
    state: Mutex<State>,
}

impl Clock {
    pub(super) fn new(timeouts: Timeouts) -> Self {
        let read_by = Some(Instant::now() + timeouts.read_header);
        let state = State {
            phase: Phase::Head,
            read_by,
            written_by: None,
        };
        Self {
            timeouts,
            state: Mutex::new(state),
        }
    }

    /// Bytes have arrived.
    pub(super) fn received(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Idle {
            state.phase = Phase::Head;
            state.read_by = Some(Instant::now() + self.timeouts.read_header);
        }
    }

    /// A request's head is complete.
    pub(super) fn requested(&self) {
        *self.lock() = State {
            phase: Phase::Busy,
            read_by: None,
            written_by: None,
        };
    }

    /// A response starts.
    pub(super) fn responding(&self, unhurried: bool) {
        if !unhurried {
            self.lock().written_by = Some(Instant::now() + self.timeouts.write);
        }
    }

    /// The connection is handed over to another protocol.
    pub(super) fn upgraded(&self) {
        *self.lock() = State {
            phase: Phase::Upgraded,
            read_by: None,
            written_by: None,
        };
    }

    /// The response's body is over. What is left in buffers is still bounded.
    pub(super) fn responded(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Upgraded {
            return;
        }
        state.phase = Phase::Idle;
        state.read_by = Some(Instant::now() + self.timeouts.idle);
    }

    pub(super) fn read_by(&self) -> Option<Instant> {
        self.lock().read_by
    }

    pub(super) fn written_by(&self) -> Option<Instant> {
        self.lock().written_by
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
