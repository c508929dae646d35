//! The fleet's clock.
//!
//! Leases compare times that different replicas wrote, so all of them use the
//! database's clock: each heartbeat measures how far this machine's is off.
//!
//! Clocks are set, also by mistake. What is deleted for its age is judged by
//! [`FleetClock::settled`], which does not follow a clock that was set forward
//! until it has stayed there for a day: nothing is forgotten early.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fuse_model::to_micros;
use jiff::{SignedDuration, Timestamp};

/// What a clock may gain between two looks without having been set.
const SLACK: Duration = Duration::from_secs(60);
/// How long a clock that was set forward must stay there to be believed.
const BELIEVED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// This machine's clock, corrected by a measured offset.
#[derive(Debug, Default)]
pub(crate) struct FleetClock {
    offset_micros: AtomicI64,
    settled: Mutex<Settled>,
}

impl FleetClock {
    /// The time of the fleet, in whole microseconds.
    pub(crate) fn now(&self) -> Timestamp {
        let offset = SignedDuration::from_micros(self.offset_micros.load(Ordering::Relaxed));
        let local = fuse_model::now();
        local.checked_add(offset).unwrap_or(local)
    }

    /// The same without what it was set forward in the last day: never later than [`Self::now`].
    pub(crate) fn settled(&self) -> Timestamp {
        let now = self.now();
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        let micros = settled.look(now.as_microsecond(), Instant::now());
        Timestamp::from_microsecond(micros).unwrap_or(now)
    }

    /// Corrects the clock: the database said `at` between `asked` and now.
    pub(crate) fn set(&self, asked: Timestamp, at: Timestamp) {
        let answered = fuse_model::now();
        let middle = asked.as_microsecond().midpoint(answered.as_microsecond());
        self.offset_micros
            .store(at.as_microsecond() - middle, Ordering::Relaxed);
    }
}

/// A clock's reading that was believed, and since when the clock is ahead of what passed since.
#[derive(Debug, Default)]
struct Settled {
    believed: Option<(Instant, i64)>,
    ahead_since: Option<Instant>,
}

impl Settled {
    /// Takes in what the clock tells at an instant, in microseconds, and answers what is believed.
    fn look(&mut self, told: i64, at: Instant) -> i64 {
        let (then, reading) = *self.believed.get_or_insert((at, told));
        let measured = reading.saturating_add(to_micros(at.saturating_duration_since(then)));
        if told > measured.saturating_add(to_micros(SLACK)) {
            let since = *self.ahead_since.get_or_insert(at);
            if at.saturating_duration_since(since) < BELIEVED_AFTER {
                return measured;
            }
        }
        // In step, put back, or ahead for so long that it was the past that was wrong.
        self.believed = Some((at, told));
        self.ahead_since = None;
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    #[test]
    fn follows_the_database() {
        let clock = FleetClock::default();
        let local = fuse_model::now();
        clock.set(local, local + SignedDuration::from_hours(2));
        let ahead = clock.now().duration_since(fuse_model::now());
        assert!(ahead > SignedDuration::from_mins(119) && ahead < SignedDuration::from_mins(121));
    }

    /// Looks at a clock `passed` seconds after the start, when it tells `told` seconds.
    struct Bench(Settled, Instant);

    impl Bench {
        fn new() -> Self {
            Self(Settled::default(), Instant::now())
        }

        fn look(&mut self, passed: u64, told: u64) -> u64 {
            let told = to_micros(Duration::from_secs(told));
            let at = self.1 + Duration::from_secs(passed);
            u64::try_from(self.0.look(told, at)).expect("is positive") / 1_000_000
        }
    }

    #[test]
    fn a_clock_set_forward_is_believed_after_a_day() {
        let (mut bench, month) = (Bench::new(), 30 * 24 * HOUR);
        assert_eq!(bench.look(0, HOUR), HOUR);
        assert_eq!(
            bench.look(30, HOUR + 31),
            HOUR + 31,
            "it runs a little fast"
        );
        assert_eq!(bench.look(60, month), HOUR + 61);
        assert_eq!(bench.look(23 * HOUR, month), 24 * HOUR + 1);
        assert_eq!(bench.look(24 * HOUR + 60, month + 5), month + 5);
        assert_eq!(bench.look(24 * HOUR + 70, month + 15), month + 15);
    }

    #[test]
    fn a_mistake_that_is_taken_back_costs_nothing() {
        let (mut bench, month) = (Bench::new(), 30 * 24 * HOUR);
        bench.look(0, HOUR);
        assert_eq!(bench.look(100, month), HOUR + 100);
        assert_eq!(bench.look(200, HOUR + 200), HOUR + 200);
        // The day is counted anew for the next one.
        assert_eq!(bench.look(300, month), HOUR + 300);
        assert_eq!(bench.look(24 * HOUR + 250, month), 25 * HOUR + 250);
    }

    #[test]
    fn a_clock_that_is_put_back_is_followed() {
        let mut bench = Bench::new();
        bench.look(0, 30 * HOUR);
        assert_eq!(bench.look(10, 6 * HOUR), 6 * HOUR);
        assert_eq!(bench.look(20, 6 * HOUR + 10), 6 * HOUR + 10);
    }
}
