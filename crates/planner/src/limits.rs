//! Limits on the life of an environment: the runtime ceiling of its task, and idleness
//! (lifecycle 15, passes 4 and 5). Two strikes in a row end it.

use std::collections::BTreeMap;
use std::time::Duration;

use fuse_model::{Environment, EnvironmentId, State};

use crate::ages::Age;

/// Cycles in a row over a limit after which an environment is destroyed.
const STRIKES: u32 = 2;

/// The fleet's defaults, for environments that name no limit of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Age at which a task counts as stuck.
    pub runtime: Duration,
    /// Idle time after which an environment is destroyed; zero = never.
    pub idle: Duration,
    /// Whether the runtime ceiling holds for draining environments, too.
    pub runtime_covers_draining: bool,
}

/// A limit that was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overrun {
    /// It exists for longer than its task may run.
    Runtime {
        /// Since it was accepted.
        age: Duration,
        /// The most.
        ceiling: Duration,
    },
    /// Nobody used it for too long.
    Idle {
        /// Since somebody did.
        idle: Duration,
        /// The most.
        limit: Duration,
    },
}

impl Overrun {
    /// The text of the failed task, word for word as specified.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Runtime { age, ceiling } => format!(
                "task stuck: runtime {}s exceeded ceiling {}s with no state transitions",
                age.as_secs(),
                ceiling.as_secs()
            ),
            Self::Idle { idle, limit } => format!(
                "environment idle: no exec or attach for {}s, exceeding idle timeout {}s",
                idle.as_secs(),
                limit.as_secs()
            ),
        }
    }
}

impl Limits {
    /// The first limit that an environment of this age is over. One that drains is nobody's
    /// to use, so that it is never idle.
    #[must_use]
    pub fn overrun(&self, environment: &Environment, age: Age) -> Option<Overrun> {
        let is_running = environment.state == State::Running;
        let drains = self.runtime_covers_draining && environment.state == State::Draining;
        if !is_running && !drains {
            return None;
        }
        let Age { life: age, idle } = age;
        let ceiling = own_or(environment.spec.max_runtime_seconds, self.runtime);
        if environment.task_id.is_some() && age > ceiling {
            return Some(Overrun::Runtime { age, ceiling });
        }
        if !is_running {
            return None;
        }
        let limit = self.idle_of(environment);
        (!limit.is_zero() && idle > limit).then_some(Overrun::Idle { idle, limit })
    }

    /// How long an environment may rest; zero = for as long as it likes.
    #[must_use]
    pub fn idle_of(&self, environment: &Environment) -> Duration {
        own_or(environment.spec.idle_timeout_seconds, self.idle)
    }
}

/// Zero means that the environment names no limit.
fn own_or(seconds: i64, default: Duration) -> Duration {
    match u64::try_from(seconds) {
        Ok(0) | Err(_) => default,
        Ok(own) => Duration::from_secs(own),
    }
}

/// What a cycle over a limit leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strike {
    /// The first: tell, and look again in the next cycle.
    Suspect,
    /// Over the limit in two cycles in a row: destroy.
    Out,
}

/// Cycles in a row over a limit. Losing it costs one cycle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strikes {
    counts: BTreeMap<EnvironmentId, u32>,
}

impl Strikes {
    /// Counts the environments that are over a limit in this cycle; all others start
    /// anew. Answers in the order given.
    pub fn count(&mut self, over: &[EnvironmentId]) -> Vec<Strike> {
        let mut counts = BTreeMap::new();
        let strikes = over
            .iter()
            .map(|id| {
                let count = self.counts.get(id).copied().unwrap_or_default() + 1;
                counts.insert(id.clone(), count);
                if count >= STRIKES {
                    Strike::Out
                } else {
                    Strike::Suspect
                }
            })
            .collect();
        self.counts = counts;
        strikes
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use fuse_model::{EnvironmentSpec, Probe, TaskId, Version};
    use jiff::Timestamp;

    use super::*;

    pub(crate) fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    pub(crate) fn running(max_runtime_seconds: i64, idle_timeout_seconds: i64) -> Environment {
        Environment {
            id: EnvironmentId::new("a"),
            version: Version::FIRST,
            spec: EnvironmentSpec {
                max_runtime_seconds,
                idle_timeout_seconds,
                ..EnvironmentSpec::default()
            },
            tenant: String::new(),
            task_id: Some(TaskId::new("t")),
            state: State::Running,
            host_id: None,
            url: String::new(),
            endpoints: Vec::new(),
            boot_id: String::new(),
            guest_version: String::new(),
            probe: Probe::None,
            error: String::new(),
            operation: None,
            created_at: at(0),
            updated_at: at(0),
            activity_at: at(50),
        }
    }

    fn limits(runtime: u64, idle: u64) -> Limits {
        Limits {
            runtime: Duration::from_secs(runtime),
            idle: Duration::from_secs(idle),
            runtime_covers_draining: false,
        }
    }

    fn over(limits: Limits, environment: &Environment, now: Timestamp) -> Option<Overrun> {
        limits.overrun(environment, Age::by_clock(environment, now))
    }

    #[test]
    fn own_limits_win_over_the_fleet() {
        let fleet = limits(100, 0);
        assert_eq!(over(fleet, &running(0, 0), at(100)), None);
        let stuck = over(fleet, &running(0, 0), at(101)).unwrap();
        assert_eq!(
            stuck.text(),
            "task stuck: runtime 101s exceeded ceiling 100s with no state transitions"
        );
        assert_eq!(over(fleet, &running(500, 0), at(101)), None);
        assert!(over(fleet, &running(10, 0), at(11)).is_some());
        let idle = over(fleet, &running(500, 60), at(111)).unwrap();
        assert_eq!(
            idle.text(),
            "environment idle: no exec or attach for 61s, exceeding idle timeout 60s"
        );
        assert!(over(limits(1000, 70), &running(0, 0), at(121)).is_some());
    }

    #[test]
    fn only_running_environments_count_and_clocks_may_go_back() {
        let draining = Environment {
            state: State::Draining,
            ..running(1, 60)
        };
        assert_eq!(over(limits(1, 1), &draining, at(1_000)), None);
        let covering = |runtime| Limits {
            runtime_covers_draining: true,
            ..limits(runtime, 1)
        };
        assert!(matches!(
            over(covering(1), &draining, at(1_000)),
            Some(Overrun::Runtime { .. })
        ));
        let without_ceiling = Environment {
            spec: EnvironmentSpec::default(),
            ..draining
        };
        assert_eq!(over(covering(5_000), &without_ceiling, at(1_000)), None);
        assert_eq!(over(limits(1, 1), &running(1, 60), at(-1_000)), None);
        let without_task = Environment {
            task_id: None,
            ..running(1, 0)
        };
        assert_eq!(over(limits(1, 0), &without_task, at(1_000)), None);
    }

    #[test]
    fn two_strikes_in_a_row() {
        let mut strikes = Strikes::default();
        let ids = [EnvironmentId::new("a"), EnvironmentId::new("b")];
        assert_eq!(strikes.count(&ids), [Strike::Suspect, Strike::Suspect]);
        assert_eq!(strikes.count(&ids[..1]), [Strike::Out]);
        assert_eq!(strikes.count(&ids), [Strike::Out, Strike::Suspect]);
        assert_eq!(strikes.count(&[]), []);
        assert_eq!(strikes.count(&ids[..1]), [Strike::Suspect]);
    }
}
