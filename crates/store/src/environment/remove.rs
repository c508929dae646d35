//! The transaction that ends an environment.

use fuse_model::{EnvironmentId, IllegalTransition, State, TaskId, Trigger, Version};

use super::change::{outcome, refusal};
use crate::host::release_in_tx;
use crate::sql::binds;
use crate::writer::{Applied, Tx, Write};
use crate::{Guarded, Removal, StoreError};

/// The state after `trigger`, if the record goes.
pub(super) fn next_terminal(from: State, trigger: Trigger) -> Result<State, IllegalTransition> {
    let to = from.next(trigger)?;
    if !to.is_terminal() {
        return Err(IllegalTransition { from, trigger });
    }
    Ok(to)
}

pub(super) struct Remove {
    pub(super) id: EnvironmentId,
    pub(super) version: Version,
    pub(super) url: String,
    pub(super) end: State,
    pub(super) removal: Removal,
}

impl Write for Remove {
    type Out = Guarded<()>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Self::Out>, StoreError> {
        let sql = "DELETE FROM environments WHERE id = $1 AND version = $2 RETURNING task_id";
        let values = binds![self.id.as_str(), self.version.0];
        let rows = tx.fetch("remove an environment", sql, values).await?;
        let Some(row) = rows.first() else {
            return Ok(Applied::Keep(refusal(tx, &self.id, self.version).await?));
        };
        let task = TaskId::new(row.columns("environments").text("task_id")?);
        self.free_task(tx, &task).await?;
        release_in_tx(tx, &self.id).await?;
        tx.event(&self.id, self.end, &self.url, &self.removal.error);
        tx.audit(&self.removal.audit);
        Ok(Applied::Keep(Guarded::Updated(())))
    }
}

impl Remove {
    /// Lets the task id be used again, and leaves the outcome on the task.
    async fn free_task(&self, tx: &mut Tx<'_>, task: &TaskId) -> Result<(), StoreError> {
        let (task, id) = (task.as_str(), self.id.as_str());
        let (sql, values) = match outcome(&self.removal.task) {
            None => (
                "UPDATE tasks SET active = 0, updated_at = $3 \
                 WHERE id = $1 AND environment_id = $2",
                binds![task, id, tx.now],
            ),
            Some((status, error)) => (
                "UPDATE tasks SET active = 0, updated_at = $3, status = $4, last_error = $5 \
                 WHERE id = $1 AND environment_id = $2",
                binds![task, id, tx.now, status.as_str(), error],
            ),
        };
        tx.execute("free a task", sql, values).await.map(drop)
    }
}
