//! Empties hosts that are being drained, as far as their operator said.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use fuse_model::{Environment, EnvironmentId, Host, HostId, State};
use fuse_planner::{Eviction, evictions};
use fuse_store::{Change, StoreError};
use fuse_wire_api::MigrateEnvironment;
use futures_util::{StreamExt as _, stream};

use super::{PARALLEL, cycle::Picture, pauses::Pauses};
use crate::{Control, Error, error::chain};

/// Hosts that are being emptied right now, and what could not be moved away: every try asks the
/// workload to stop.
#[derive(Debug, Default)]
pub(crate) struct Evicting {
    hosts: Mutex<HashSet<HostId>>,
    pauses: Pauses,
}

impl Evicting {
    fn lock(&self) -> MutexGuard<'_, HashSet<HostId>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, host: &HostId) -> bool {
        self.lock().insert(host.clone())
    }

    fn end(&self, host: &HostId) {
        self.lock().remove(host);
    }
}

impl Control {
    /// Begins what is due. A drain command may take its time and a copy longer: neither
    /// holds up the cycle, and a host is not begun with again before it is done with.
    pub(super) fn evict(&self, picture: &Picture) {
        let evicting = &self.inner.evicting;
        evicting.pauses.forget_all_but(&picture.records);
        for host in &picture.draining {
            let there = |one: &&Environment| one.host_id.as_ref() == Some(&host.id);
            let there: Vec<_> = picture.records.values().filter(there).cloned().collect();
            if self.due(host, &there, &HashSet::new()).is_empty() || !evicting.begin(&host.id) {
                continue;
            }
            let (control, host) = (self.clone(), host.clone());
            self.spawn(async move {
                control.empty(&host, &there).await;
                control.inner.evicting.end(&host.id);
            });
        }
    }

    /// What is due on a host, less what nobody takes and what is given a pause.
    pub(super) fn due(
        &self,
        host: &Host,
        there: &[Environment],
        refused: &HashSet<EnvironmentId>,
    ) -> Vec<Eviction> {
        evictions(host, there.iter(), |one| {
            self.is_at_work(one)
                || refused.contains(&one.id)
                || self.inner.evicting.pauses.waits(&one.id)
        })
    }

    /// Drains what is there, or moves one of it: the first that another host takes.
    async fn empty(&self, host: &Host, there: &[Environment]) {
        let mut refused = HashSet::new();
        loop {
            let due = self.due(host, there, &refused);
            let Some(Eviction::Migrate(id)) = due.first() else {
                return stream::iter(due)
                    .for_each_concurrent(PARALLEL, |due| self.drain_away(&host.id, due))
                    .await;
            };
            if self.migrate_away(&host.id, id).await {
                return;
            }
            refused.insert(id.clone());
        }
    }

    /// A failure is in the environment's `error`, too; the next cycle goes on from there.
    async fn drain_away(&self, host: &HostId, due: Eviction) {
        let Eviction::Drain(id) = due else { return };
        let drained = self.environment_drain(&id).await.map(drop);
        note(host, &id, drained.as_ref().err());
    }

    /// Moves one to wherever there is room. `false` when it was not even begun, so that it may
    /// be another one's turn.
    async fn migrate_away(&self, host: &HostId, id: &EnvironmentId) -> bool {
        let anywhere = MigrateEnvironment::default();
        let moved = match self.environment_migrate(id, &anywhere).await {
            Ok(begun) => begun.finished().await.map(drop),
            Err(refused) => {
                note(host, id, Some(&refused));
                self.say_why_it_stays(id, &refused).await;
                return false;
            }
        };
        note(host, id, moved.as_ref().err());
        match moved {
            // The next one at once, in a cycle of its own.
            Ok(()) => self.reconcile_now(),
            Err(_) => {
                let interval = self.inner.settings.reconcile_interval;
                self.inner.evicting.pauses.failed(id, interval);
            }
        }
        true
    }
}

impl Control {
    /// An operator who waits for the host to be empty reads it at the environment.
    async fn say_why_it_stays(&self, id: &EnvironmentId, refused: &Error) {
        if !matches!(refused, Error::Placement(_)) {
            return;
        }
        let said = async {
            let Some(record) = self.inner.store.environment_get(id).await? else {
                return Ok(());
            };
            let text = format!("migrate: {refused}");
            if record.state == State::Running && record.error != text {
                let change = Change {
                    error: Some(text),
                    ..Change::default()
                };
                // Whoever changed it meanwhile has something else to say.
                let _guarded = self.record_update(&record, change).await?;
            }
            Ok::<(), StoreError>(())
        };
        if let Err(e) = said.await {
            tracing::warn!(vm_id = %id, error = %chain(&e), "cannot say why it is not moved");
        }
    }
}

fn note(host: &HostId, id: &EnvironmentId, error: Option<&Error>) {
    match error {
        None => tracing::info!(host_id = %host, vm_id = %id, "evicted from a draining host"),
        Some(e) => tracing::warn!(
            host_id = %host, vm_id = %id, error = %chain(e),
            "cannot evict from a draining host"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_emptied_once_at_a_time() {
        let (evicting, host) = (Evicting::default(), HostId::new("h"));
        assert!(evicting.begin(&host) && !evicting.begin(&host));
        evicting.end(&host);
        assert!(evicting.begin(&host));
    }
}
