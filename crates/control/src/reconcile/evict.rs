//! Empties hosts that are being drained, as far as their operator said.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use fuse_model::{EnvironmentId, HostId};
use fuse_planner::{Eviction, evictions};
use fuse_wire_api::MigrateEnvironment;
use futures_util::{StreamExt as _, stream};

use super::{PARALLEL, cycle::Picture};
use crate::{Control, Error, error::chain};

/// Hosts that are being emptied right now.
#[derive(Debug, Default)]
pub(crate) struct Evicting(Mutex<HashSet<HostId>>);

impl Evicting {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<HostId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// Begins what is due. A drain command may take its time and a copy longer: neither
    /// holds up the cycle, and a host is not begun with again before it is done with.
    pub(super) fn evict(&self, picture: &Picture) {
        for host in &picture.draining {
            let due = evictions(host, picture.records.values(), |one| self.is_at_work(one));
            if due.is_empty() || !self.inner.evicting.lock().insert(host.id.clone()) {
                continue;
            }
            let (control, host) = (self.clone(), host.id.clone());
            self.spawn(async move {
                stream::iter(due)
                    .for_each_concurrent(PARALLEL, |due| control.carry_out_eviction(&host, due))
                    .await;
                control.inner.evicting.lock().remove(&host);
            });
        }
    }

    /// A failure is in the environment's `error`, too; the next cycle goes on from there.
    async fn carry_out_eviction(&self, host: &HostId, due: Eviction) {
        let (id, done) = match due {
            Eviction::Drain(id) => {
                let drained = self.environment_drain(&id).await.map(drop);
                (id, drained)
            }
            Eviction::Migrate(id) => {
                let migrated = self.migrate_away(&id).await;
                (id, migrated)
            }
        };
        match done {
            Ok(()) => tracing::info!(host_id = %host, vm_id = %id, "evicted from a draining host"),
            Err(e) => tracing::warn!(
                host_id = %host, vm_id = %id, error = %chain(&e),
                "cannot evict from a draining host"
            ),
        }
    }

    async fn migrate_away(&self, id: &EnvironmentId) -> Result<(), Error> {
        let anywhere = MigrateEnvironment::default();
        let moved = self.environment_migrate(id, &anywhere).await?;
        moved.finished().await.map(drop)
    }
}
