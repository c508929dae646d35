//! Renews the credentials of guests before their certificates end (lifecycle 5).
//!
//! It is a rotation like any that is asked for: whatever fails leaves the old ones in force, and
//! the second half of their life is there to try again in.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use fuse_model::{Environment, EnvironmentId};
use fuse_store::StoreError;
use futures_util::{StreamExt as _, stream};

use super::{log, pauses::Pauses};
use crate::{Control, Error, error::chain, guest};

/// Renewed side by side, and begun with by one cycle: each starts a guest agent anew.
const PARALLEL: usize = 4;
const AT_A_TIME: usize = 64;

/// What is being renewed right now, and what could not be.
#[derive(Debug, Default)]
pub(crate) struct Renewing {
    is_under_way: AtomicBool,
    pauses: Pauses,
}

impl Control {
    /// Begins what is due. A guest that hangs must not hold up the cycle, and the last ones are
    /// done with before the next begin.
    pub(super) async fn renew_credentials(&self, records: &BTreeMap<EnvironmentId, Environment>) {
        let renewing = &self.inner.renewing;
        renewing.pauses.forget_all_but(records);
        if renewing.is_under_way.load(Ordering::Acquire) {
            return;
        }
        // Those that wait come first: they must not be all that is read.
        let limit = u32::try_from(AT_A_TIME + renewing.pauses.count()).unwrap_or(u32::MAX);
        let mut due = match self.old_credentials(limit).await {
            Ok(due) => due,
            Err(e) => return log(&e, "cannot find the guest credentials that are old"),
        };
        due.retain(|id| !renewing.pauses.waits(id));
        due.truncate(AT_A_TIME);
        if due.is_empty() {
            return;
        }
        renewing.is_under_way.store(true, Ordering::Release);
        let control = self.clone();
        self.spawn(async move {
            stream::iter(due)
                .for_each_concurrent(PARALLEL, |id| control.renew(id))
                .await;
            let renewing = &control.inner.renewing;
            renewing.is_under_way.store(false, Ordering::Release);
        });
    }

    /// Environments whose guest's credentials are due, the oldest first.
    pub(super) async fn old_credentials(
        &self,
        limit: u32,
    ) -> Result<Vec<EnvironmentId>, StoreError> {
        match self.ago(guest::RENEW_AFTER) {
            Some(before) => self.inner.store.environments_to_renew(before, limit).await,
            None => Ok(Vec::new()),
        }
    }

    async fn renew(&self, id: EnvironmentId) {
        let pauses = &self.inner.renewing.pauses;
        match self.environment_rotate_token(&id).await {
            // It ended, or somebody is at work on it: nothing is known to be wrong.
            Ok(()) | Err(Error::Missing(_) | Error::RotateNotRunning { .. }) => pauses.forget(&id),
            Err(e) => {
                pauses.failed(&id, self.inner.settings.reconcile_interval);
                tracing::warn!(
                    vm_id = %id, error = %chain(&e),
                    "cannot renew the guest's credentials yet; the old ones are in force"
                );
            }
        }
    }
}
