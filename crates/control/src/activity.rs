//! The activity clock: when an environment was used last. What is under way counts as use for as
//! long as it takes, so that nothing idle-times out in the middle of a command.

use std::{convert::Infallible, time::Duration};

use fuse_model::{Environment, EnvironmentId};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::{Control, error::chain};

/// The clock is written at most this often, and at least this often while something is under way.
const LONGEST_STEP: Duration = Duration::from_secs(30);
/// A clock that is coarser than this part of the idle limit would end environments early.
const STEPS: u32 = 4;

impl Control {
    /// How exact the clock of an environment has to be.
    pub(crate) fn activity_step(&self, environment: &Environment) -> Duration {
        let limit = self.limits().idle_of(environment);
        if limit.is_zero() {
            return LONGEST_STEP;
        }
        LONGEST_STEP.min(limit / STEPS)
    }

    /// Notes that an environment is in use, unless that was noted just now.
    pub(crate) async fn note_activity(&self, environment: &Environment) {
        let now = self.inner.store.now();
        let age = now.duration_since(environment.activity_at);
        if age.unsigned_abs() >= self.activity_step(environment) {
            self.touch(&environment.id).await;
        }
    }

    /// Notes that an environment is in use. Best effort: a failed write only makes the
    /// clock older than it is.
    pub(crate) async fn touch(&self, id: &EnvironmentId) {
        let now = self.inner.store.now();
        if let Err(e) = self.inner.store.environment_touch(id, now).await {
            tracing::warn!(vm_id = %id, error = %chain(&e), "cannot note activity");
        }
    }

    /// Notes in every `step` that an environment is in use, until it is dropped.
    pub(crate) async fn stay_in_use(&self, id: &EnvironmentId, step: Duration) -> Infallible {
        let mut ticks = interval_at(Instant::now() + step, step);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.touch(id).await;
        }
    }
}
