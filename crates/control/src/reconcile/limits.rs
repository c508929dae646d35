//! Ends environments that are over a limit, at the second strike.

use fuse_model::{AuditEntry, AuditKind, Environment, EnvironmentId, OperationKind, Trigger};
use fuse_planner::{Ages, Overrun, Strike, Strikes};
use fuse_store::{Change, DeadLetter, Guarded, OperationChange, TaskChange};

use super::cycle::Picture;
use crate::{
    Control, Error,
    audit::{self, Reason},
    control::OPERATION_TTL,
    error::chain,
};

impl Control {
    pub(super) async fn enforce_limits(
        &self,
        stuck: &mut Strikes,
        idle: &mut Strikes,
        ages: &mut Ages,
        picture: &Picture,
    ) {
        let limits = self.limits();
        let (now, instant) = picture.read_at;
        ages.look(picture.records.values(), now, instant);
        let records = picture.records.values();
        let (runtime, idleness): (Vec<_>, Vec<_>) = records
            .filter_map(|record| {
                let age = ages.of(&record.id)?;
                Some((record, limits.overrun(record, age)?))
            })
            .partition(|(_, overrun)| matches!(overrun, Overrun::Runtime { .. }));
        self.strike(stuck, runtime).await;
        self.strike(idle, idleness).await;
    }

    async fn strike(&self, strikes: &mut Strikes, over: Vec<(&Environment, Overrun)>) {
        let ids: Vec<EnvironmentId> = over.iter().map(|(record, _)| record.id.clone()).collect();
        for ((record, overrun), strike) in over.into_iter().zip(strikes.count(&ids)) {
            let outcome = match strike {
                Strike::Suspect => self.suspect(record, &overrun).await,
                Strike::Out => self.end_overrun(record, &overrun).await,
            };
            if let Err(e) = outcome {
                tracing::warn!(vm_id = %record.id, error = %chain(&e), "cannot enforce a limit");
            }
        }
    }

    async fn suspect(&self, record: &Environment, overrun: &Overrun) -> Result<(), Error> {
        let metrics = &self.inner.metrics.passes;
        match overrun {
            Overrun::Runtime { .. } => metrics.stuck_suspected.inc(),
            Overrun::Idle { .. } => metrics.idle_suspected.inc(),
        }
        let entry = match (overrun, &record.task_id) {
            (Overrun::Runtime { .. }, Some(task)) => {
                AuditEntry::new(AuditKind::TaskStuckSuspected, task.as_str())
                    .with("vm_id", record.id.as_str())
            }
            _ => AuditEntry::new(AuditKind::VmIdleSuspected, record.id.as_str()),
        };
        Ok(self.inner.store.audit_insert(vec![entry]).await?)
    }

    async fn end_overrun(&self, record: &Environment, overrun: &Overrun) -> Result<(), Error> {
        let (trigger, reason, kind) = match overrun {
            Overrun::Runtime { .. } => (Trigger::RuntimeExceeded, Reason::StuckTask, "stuck_task"),
            Overrun::Idle { .. } => (Trigger::IdleExceeded, Reason::IdleTimeout, "idle_timeout"),
        };
        if self.is_at_work(record) {
            return Ok(());
        }
        let text = overrun.text();
        tracing::warn!(vm_id = %record.id, "{text}");
        let change = Change {
            error: Some(text.clone()),
            task: TaskChange::Failed(text.clone()),
            operation: OperationChange::Begin(OperationKind::Destroy, OPERATION_TTL),
            audit: audit::destroying(record, reason, &text),
            ..Change::default()
        };
        // Guarded by the version: if somebody used it since the table was read, or
        // works on it now, it stays.
        match self.record_transition(record, trigger, change).await? {
            Guarded::Updated(ended) => {
                let metrics = &self.inner.metrics.passes;
                match overrun {
                    Overrun::Runtime { .. } => metrics.stuck_failed.inc(),
                    Overrun::Idle { .. } => metrics.idle_failed.inc(),
                }
                // The task has left the record by now.
                self.give_up_on(dead_letter(record, kind, text)).await;
                self.finish_destroy(ended).await
            }
            Guarded::Stale | Guarded::Missing | Guarded::Busy(_) => Ok(()),
        }
    }
}

fn dead_letter(record: &Environment, kind: &str, reason: String) -> DeadLetter {
    DeadLetter {
        kind: kind.to_owned(),
        entity_id: record.id.to_string(),
        task_id: record
            .task_id
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        reason,
        retry_count: 0,
        payload: serde_json::Map::new(),
    }
}
