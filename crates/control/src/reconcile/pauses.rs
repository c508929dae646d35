//! What failed and is tried again later.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use fuse_model::{Environment, EnvironmentId};

/// Longest pause after a failure, in cycles: each is twice the one before.
const LONGEST_PAUSE: u32 = 32;

/// Environments whose turn comes again after a pause.
#[derive(Debug, Default)]
pub(super) struct Pauses(Mutex<HashMap<EnvironmentId, Failed>>);

#[derive(Debug)]
struct Failed {
    times: u32,
    again_at: Instant,
}

impl Pauses {
    fn lock(&self) -> MutexGuard<'_, HashMap<EnvironmentId, Failed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a failure; `interval` is that of the cycles.
    pub(super) fn failed(&self, id: &EnvironmentId, interval: Duration) {
        let mut all = self.lock();
        let failed = all.entry(id.clone()).or_insert(Failed {
            times: 0,
            again_at: Instant::now(),
        });
        failed.again_at = Instant::now() + interval * pause(failed.times);
        failed.times += 1;
    }

    pub(super) fn waits(&self, id: &EnvironmentId) -> bool {
        let all = self.lock();
        let failed = all.get(id);
        failed.is_some_and(|failed| Instant::now() < failed.again_at)
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn forget(&self, id: &EnvironmentId) {
        self.lock().remove(id);
    }

    pub(super) fn forget_all_but(&self, records: &BTreeMap<EnvironmentId, Environment>) {
        self.lock().retain(|id, _| records.contains_key(id));
    }
}

/// Cycles to wait after so many failures before.
fn pause(failures: u32) -> u32 {
    2u32.saturating_pow(failures.saturating_add(1))
        .min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_waits_longer() {
        let lengths: Vec<u32> = (0..8).map(pause).collect();
        assert_eq!(lengths, [2, 4, 8, 16, 32, 32, 32, 32]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
        let pauses = Pauses::default();
        let id = EnvironmentId::new("fuse-a");
        assert!(!pauses.waits(&id));
        pauses.failed(&id, Duration::from_secs(3600));
        assert!(pauses.waits(&id));
        pauses.forget_all_but(&BTreeMap::new());
        assert!(!pauses.waits(&id));
    }
}
