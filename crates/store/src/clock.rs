//! The fleet's clock.
//!
//! Leases compare times that different replicas wrote, so all of them use the
//! database's clock: each heartbeat measures how far this machine's is off.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};

/// This machine's clock, corrected by a measured offset.
#[derive(Debug, Default)]
pub(crate) struct FleetClock {
    offset_micros: AtomicI64,
}

impl FleetClock {
    /// The time of the fleet, in whole microseconds.
    pub(crate) fn now(&self) -> Timestamp {
        let offset = SignedDuration::from_micros(self.offset_micros.load(Ordering::Relaxed));
        let local = fuse_model::now();
        local.checked_add(offset).unwrap_or(local)
    }

    /// Corrects the clock: the database said `at` between `asked` and now.
    pub(crate) fn set(&self, asked: Timestamp, at: Timestamp) {
        let answered = fuse_model::now();
        let middle = asked.as_microsecond().midpoint(answered.as_microsecond());
        self.offset_micros
            .store(at.as_microsecond() - middle, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_database() {
        let clock = FleetClock::default();
        let local = fuse_model::now();
        clock.set(local, local + SignedDuration::from_hours(2));
        let ahead = clock.now().duration_since(fuse_model::now());
        assert!(ahead > SignedDuration::from_mins(119) && ahead < SignedDuration::from_mins(121));
    }
}
