//! Carries out what the planner decided.

use fuse_model::{AuditEntry, AuditKind, Environment, EnvironmentId, OperationKind, Trigger};
use fuse_planner::{Action, Memory};
use fuse_store::{Change, DeadLetter, Guarded, OperationChange, StoreError, TaskChange};
use futures_util::{StreamExt as _, stream};

use super::{PARALLEL, cycle::Picture};
use crate::{
    Control, Error,
    audit::{self, Reason},
    control::OPERATION_TTL,
    error::chain,
};

const LOST: &str = "vm missing from provider";
const STOPPED: &str = "vm stopped on its host";
const NOT_RECOVERED: &str = "vm missing from provider during recovery";

impl Control {
    /// Acts on different environments side by side. A failed action is logged; the next
    /// cycle decides anew.
    pub(super) async fn carry_out(
        &self,
        memory: &mut Memory,
        actions: Vec<Action>,
        picture: &Picture,
        recovery: bool,
    ) {
        let failed: Vec<Action> = stream::iter(actions)
            .map(|action| async move {
                match self.act(&action, picture, recovery).await {
                    Ok(()) => None,
                    Err(e) => {
                        tracing::warn!(?action, error = %chain(&*e), "a reconcile action failed");
                        Some(action)
                    }
                }
            })
            .buffer_unordered(PARALLEL)
            .filter_map(std::future::ready)
            .collect()
            .await;
        for action in failed {
            if let Action::DestroyOrphan { place, vm } = action {
                self.inner.metrics.passes.orphans_failed.inc();
                let failures = memory.orphan_failed(&place, &vm);
                if failures == self.inner.settings.orphan_max_retries {
                    self.leave_orphan(place, vm, failures).await;
                }
            }
        }
    }

    /// An orphan that cannot be destroyed is left alone until it disappears.
    async fn leave_orphan(&self, place: String, vm: String, failures: u32) {
        self.inner.metrics.passes.orphans_dead.inc();
        self.audit(
            AuditEntry::new(AuditKind::VmOrphanDeadLettered, vm.as_str())
                .with("place", place.as_str())
                .with("retry_count", failures),
        );
        let mut payload = serde_json::Map::new();
        payload.insert("place".to_owned(), place.into());
        let letter = DeadLetter {
            kind: "orphan_destroy".to_owned(),
            entity_id: vm,
            task_id: String::new(),
            reason: "an orphaned VM cannot be destroyed".to_owned(),
            retry_count: failures,
            payload,
        };
        self.give_up_on(letter).await;
    }

    async fn act(
        &self,
        action: &Action,
        picture: &Picture,
        recovery: bool,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match action {
            Action::MarkLost(id) => {
                if let Some(record) = picture.records.get(id) {
                    self.mark_lost(record, recovery).await?;
                }
            }
            Action::Reap(id) => {
                if let Some(record) = picture.records.get(id) {
                    self.remove_destroyed(record).await?;
                }
            }
            Action::EndStopped(id) => {
                if let Some(record) = picture.records.get(id) {
                    self.end_stopped(record).await?;
                }
            }
            Action::SetUpAgain(id) => {
                if let Some(record) = picture.records.get(id) {
                    self.set_up_again(record).await?;
                }
            }
            Action::NoteGuest { id, version } => {
                if let Some(record) = picture.records.get(id) {
                    let change = Change {
                        guest_version: Some(version.clone()),
                        ..Change::default()
                    };
                    // Stale or missing: the next cycle looks again.
                    let _guarded = self.record_update(record, change).await?;
                }
            }
            Action::RetryDestroy(id) => self.retry_destroy(id).await?,
            Action::DestroyOrphan { place, vm } => {
                let id = EnvironmentId::new(vm.clone());
                // It may have got a record since the table was read, or become that of the record.
                let record = self.inner.store.environment_get(&id).await?;
                if record.is_some_and(|now| !picture.still_shows(&now)) {
                    return Ok(());
                }
                if let Some(site) = picture.sites.get(place) {
                    site.provider.destroy(&id).await?;
                    self.inner.metrics.passes.orphans_destroyed.inc();
                    tracing::warn!(vm_id = vm, place, "destroyed an orphaned VM");
                }
            }
        }
        Ok(())
    }

    /// The VM is gone: nothing is left to destroy, so the record goes too.
    async fn mark_lost(&self, record: &Environment, recovery: bool) -> Result<(), Error> {
        let (trigger, text) = if recovery {
            (Trigger::NotRecovered, NOT_RECOVERED)
        } else {
            (Trigger::Lost, LOST)
        };
        tracing::warn!(vm_id = %record.id, "{text}");
        let change = Change {
            error: Some(text.to_owned()),
            task: TaskChange::Failed(text.to_owned()),
            audit: audit::destroying(record, Reason::Missing, text),
            ..Change::default()
        };
        match self.record_transition(record, trigger, change).await? {
            Guarded::Updated(lost) => {
                self.inner.metrics.passes.missing.inc();
                self.remove_destroyed(&lost).await
            }
            // It moved on since the table was read: the next cycle looks again.
            Guarded::Stale | Guarded::Missing | Guarded::Busy(_) => Ok(()),
        }
    }

    /// The VM has ended by itself; its disk and network are still on the host.
    async fn end_stopped(&self, record: &Environment) -> Result<(), Error> {
        if self.is_at_work(record) {
            return Ok(());
        }
        tracing::warn!(vm_id = %record.id, "{STOPPED}");
        let change = Change {
            error: Some(STOPPED.to_owned()),
            task: TaskChange::Failed(STOPPED.to_owned()),
            operation: OperationChange::Begin(OperationKind::Destroy, OPERATION_TTL),
            audit: audit::destroying(record, Reason::Missing, STOPPED),
            ..Change::default()
        };
        let stored = self
            .record_transition(record, Trigger::Lost, change)
            .await?;
        match stored {
            Guarded::Updated(stopped) => self.finish_destroy(stopped).await,
            // It moved on since the table was read: the next cycle looks again.
            Guarded::Stale | Guarded::Missing | Guarded::Busy(_) => Ok(()),
        }
    }

    async fn retry_destroy(&self, id: &EnvironmentId) -> Result<(), Error> {
        let Some(record) = self.inner.store.environment_get(id).await? else {
            return Ok(());
        };
        match self.begin_destroy(&record).await? {
            Some(record) => self.finish_destroy(record).await,
            None => Ok(()),
        }
    }

    /// Takes the destroy of a record in `destroying`; `None` when somebody else has it.
    pub(super) async fn begin_destroy(
        &self,
        record: &Environment,
    ) -> Result<Option<Environment>, StoreError> {
        if self.is_at_work(record) {
            return Ok(None);
        }
        let change = Change {
            operation: OperationChange::Begin(OperationKind::Destroy, OPERATION_TTL),
            ..Change::default()
        };
        match self.record_update(record, change).await? {
            Guarded::Updated(record) => Ok(Some(record)),
            Guarded::Stale | Guarded::Missing | Guarded::Busy(_) => Ok(None),
        }
    }
}
