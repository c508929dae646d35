//! Since when a replica must have beaten to count as alive.
//!
//! Normally that is a fixed time. But when this replica itself could not beat, because the
//! database was away or the process was stopped, the others may have had the same trouble: then
//! their silence says nothing, until they had time to beat again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fuse_model::to_micros;
use jiff::Timestamp;

use crate::presence::{DEAD_AFTER, HEARTBEAT};

/// A beat that comes later than this after the last one was not just slow.
const LATE: Duration = Duration::from_secs(2 * HEARTBEAT.as_secs());
/// Time to beat again after an outage.
const GRACE: Duration = LATE;

/// The beats of this replica. On SQLite there are none, and every replica counts as alive.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    beats: Mutex<Beats>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Beats {
    /// The last one, in microseconds.
    last: Option<i64>,
    /// The last one before the latest outage, and the end of the grace after it.
    outage: Option<(i64, i64)>,
}

impl Pulse {
    /// This replica has beaten.
    pub(crate) fn beaten(&self, at: Timestamp) {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let at = at.as_microsecond();
        if let Some(last) = beats.last.filter(|last| at - last > to_micros(LATE)) {
            beats.outage = Some((last, at + to_micros(GRACE)));
        }
        beats.last = Some(at);
    }

    /// Replicas seen after this time are alive.
    pub(crate) fn alive_since(&self, now: Timestamp) -> i64 {
        let beats = *self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now.as_microsecond();
        let heard_until = match (beats.last, beats.outage) {
            (Some(last), _) if now - last > to_micros(LATE) => last,
            (_, Some((before, grace_ends))) if now < grace_ends => before,
            _ => now,
        };
        heard_until.min(now) - to_micros(DEAD_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).expect("is a time")
    }

    fn since(pulse: &Pulse, now: i64) -> i64 {
        (pulse.alive_since(at(now)) - at(0).as_microsecond()) / 1_000_000
    }

    #[test]
    fn a_silent_replica_is_dead_after_twenty_seconds() {
        let pulse = Pulse::default();
        assert_eq!(since(&pulse, 100), 80);
        for second in [100, 105, 110] {
            pulse.beaten(at(second));
        }
        assert_eq!(since(&pulse, 112), 92);
    }

    #[test]
    fn an_outage_makes_nobody_dead() {
        let pulse = Pulse::default();
        pulse.beaten(at(100));
        // While it lasts, whoever was alive when it began is alive.
        assert_eq!(since(&pulse, 111), 80);
        assert_eq!(since(&pulse, 150), 80);
        // When it is over the others have time to beat as well.
        pulse.beaten(at(160));
        assert_eq!(since(&pulse, 165), 80);
        pulse.beaten(at(165));
        assert_eq!(since(&pulse, 169), 80);
        pulse.beaten(at(170));
        assert_eq!(since(&pulse, 171), 151);
    }
}
