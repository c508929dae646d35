//! How long environments exist and rest, whatever happens to the clock.
//!
//! Records say *when* something was, by a clock that somebody may set. So its reading is believed
//! only for what happened before the first look. From then on a duration is what this process has
//! measured itself, and what was not there at one look cannot be older than that look.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fuse_model::{Environment, EnvironmentId};
use jiff::Timestamp;

/// How old an environment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age {
    /// Since it was accepted.
    pub life: Duration,
    /// Since it was used.
    pub idle: Duration,
}

impl Age {
    /// By the clock alone.
    #[must_use]
    pub fn by_clock(environment: &Environment, now: Timestamp) -> Self {
        Self {
            life: since(environment.created_at, now),
            idle: since(environment.activity_at, now),
        }
    }
}

/// What is known of all environments of a fleet. Losing it costs the protection against what the
/// clock did before.
#[derive(Debug, Clone, Default)]
pub struct Ages {
    seen: BTreeMap<EnvironmentId, Seen>,
    looked: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    created: Sight,
    used: Sight,
}

/// A time in a record, and how long ago that was when it was first seen.
#[derive(Debug, Clone, Copy)]
struct Sight {
    told: Timestamp,
    age: Duration,
    at: Instant,
}

/// One look at the table.
#[derive(Debug, Clone, Copy)]
struct Look {
    now: Timestamp,
    at: Instant,
    /// Since the look before.
    gap: Option<Duration>,
}

impl Ages {
    /// Takes in all environments of the fleet, as they were read at the instant `at`, when the clock
    /// said `now`. Those left out are forgotten.
    pub fn look<'a>(
        &mut self,
        environments: impl Iterator<Item = &'a Environment>,
        now: Timestamp,
        at: Instant,
    ) {
        let gap = self.looked.map(|last| at.saturating_duration_since(last));
        let look = Look { now, at, gap };
        let before = std::mem::take(&mut self.seen);
        self.seen = environments
            .map(|environment| {
                let known = before.get(&environment.id);
                let seen = Seen {
                    created: look.sight(known.map(|s| s.created), environment.created_at),
                    used: look.sight(known.map(|s| s.used), environment.activity_at),
                };
                (environment.id.clone(), seen)
            })
            .collect();
        self.looked = Some(at);
    }

    /// How old an environment was at the last look; `None` for one that it did not see.
    #[must_use]
    pub fn of(&self, id: &EnvironmentId) -> Option<Age> {
        let (seen, looked) = (self.seen.get(id)?, self.looked?);
        Some(Age {
            life: seen.created.age_at(looked),
            idle: seen.used.age_at(looked),
        })
    }
}

impl Look {
    fn sight(&self, known: Option<Sight>, told: Timestamp) -> Sight {
        if let Some(known) = known.filter(|known| known.told == told) {
            return known;
        }
        let age = since(told, self.now);
        Sight {
            told,
            age: self.gap.map_or(age, |gap| age.min(gap)),
            at: self.at,
        }
    }
}

impl Sight {
    fn age_at(&self, at: Instant) -> Duration {
        self.age + at.saturating_duration_since(self.at)
    }
}

fn since(then: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::tests::{at, running};

    const HOUR: i64 = 3600;

    /// Looks at environments while the wall clock and the time that passes are two things.
    struct Bench {
        ages: Ages,
        start: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let (ages, start) = (Ages::default(), Instant::now());
            Self { ages, start }
        }

        fn look(&mut self, environments: &[Environment], wall: i64, passed: u64) {
            let instant = self.start + Duration::from_secs(passed);
            self.ages.look(environments.iter(), at(wall), instant);
        }

        /// Seconds of life and of rest.
        fn of(&self, environment: &Environment) -> (u64, u64) {
            let age = self.ages.of(&environment.id).unwrap();
            (age.life.as_secs(), age.idle.as_secs())
        }
    }

    fn made(id: &str, created: i64, used: i64) -> Environment {
        Environment {
            id: EnvironmentId::new(id),
            created_at: at(created),
            activity_at: at(used),
            ..running(0, 0)
        }
    }

    #[test]
    fn the_first_look_believes_the_clock() {
        let mut bench = Bench::new();
        let old = made("a", 0, 50);
        bench.look(std::slice::from_ref(&old), 100, 0);
        assert_eq!(bench.of(&old), (100, 50));
        bench.look(std::slice::from_ref(&old), 130, 30);
        assert_eq!(bench.of(&old), (130, 80));
        assert_eq!(bench.ages.of(&EnvironmentId::new("b")), None);
    }

    #[test]
    fn a_clock_set_forward_makes_nothing_older() {
        let mut bench = Bench::new();
        let old = made("old", 0, 50);
        bench.look(std::slice::from_ref(&old), 100, 0);
        // Between two looks one is used and one made, before the clock is set and after.
        let used = made("old", 0, 110);
        let before = made("before", 105, 105);
        let after = made("after", 125 + HOUR, 125 + HOUR);
        let all = [used.clone(), before.clone(), after.clone()];
        bench.look(&all, 130 + HOUR, 30);
        assert_eq!(bench.of(&used), (130, 30));
        assert_eq!(bench.of(&before), (30, 30));
        assert_eq!(bench.of(&after), (5, 5));
        bench.look(&all, 160 + HOUR, 60);
        assert_eq!(bench.of(&used), (160, 60));
        assert_eq!(bench.of(&before), (60, 60));
        assert_eq!(bench.of(&after), (35, 35));
    }

    #[test]
    fn a_clock_set_back_makes_nothing_younger() {
        let mut bench = Bench::new();
        let old = made("old", 0, 50);
        bench.look(std::slice::from_ref(&old), 100, 0);
        let fresh = made("fresh", 120 - HOUR, 120 - HOUR);
        let from_the_future = made("future", 110, 110);
        let all = [old.clone(), fresh.clone(), from_the_future.clone()];
        bench.look(&all, 130 - HOUR, 30);
        assert_eq!(bench.of(&old), (130, 80));
        assert_eq!(bench.of(&fresh), (10, 10));
        // As old as nothing at worst; from here on it ages like the others.
        assert_eq!(bench.of(&from_the_future), (0, 0));
        bench.look(&all, 160 - HOUR, 60);
        assert_eq!(bench.of(&from_the_future), (30, 30));
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut bench = Bench::new();
        let one = made("a", 0, 0);
        bench.look(std::slice::from_ref(&one), 100, 0);
        bench.look(&[], 130, 30);
        assert_eq!(bench.ages.of(&one.id), None);
    }
}
