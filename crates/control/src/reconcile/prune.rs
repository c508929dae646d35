//! Forgets what has had its time: events of environments that are gone, old audit
//! entries, used idempotency keys, what was kept of creates that failed. The holder of the lease does it after every cycle.

use std::{future::Future, time::Duration};

use fuse_store::StoreError;
use jiff::Timestamp;

use super::log;
use crate::Control;

/// Events of a gone environment stay readable for this long.
const KEEP_EVENTS: Duration = Duration::from_secs(60);
/// What one transaction forgets: short, because writers wait for it.
const BATCH: u32 = 500;
/// Transactions per cycle and kind; what is left is forgotten by the next cycle.
const ROUNDS: u32 = 200;

impl Control {
    pub(super) async fn prune(&self) {
        let store = &self.inner.store;
        if let Some(before) = self.ago(KEEP_EVENTS) {
            rounds("events", || store.event_prune(before, BATCH)).await;
        }
        let keep = self.inner.settings.audit_retention;
        if let Some(before) = self.ago(keep).filter(|_| !keep.is_zero()) {
            rounds("audit entries", || store.audit_prune(before, BATCH)).await;
        }
        rounds("failed creates", || store.task_failure_prune(BATCH)).await;
        rounds("idempotency keys", || store.idempotency_prune(BATCH)).await;
    }

    pub(super) fn ago(&self, age: Duration) -> Option<Timestamp> {
        self.inner.store.settled_now().checked_sub(age).ok()
    }
}

/// Prunes until nothing is left to forget.
async fn rounds<F>(what: &'static str, prune: impl Fn() -> F)
where
    F: Future<Output = Result<u64, StoreError>>,
{
    let mut forgotten = 0;
    for _ in 0..ROUNDS {
        match prune().await {
            Ok(0) => break,
            Ok(count) => forgotten += count,
            Err(e) => return log(&e, "cannot forget what is old"),
        }
    }
    if forgotten > 0 {
        tracing::debug!(count = forgotten, "forgot old {what}");
    }
}
