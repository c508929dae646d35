//! The transaction in which one environment takes the place of another: the task and the age
//! of a migrated environment move, and there is no moment at which both or neither have them.

use fuse_model::{Environment, State};

use super::change::{Update, apply_round};
use crate::sql::binds;
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Guarded, MovedEnvironment, StoreError};

pub(super) struct CutOver {
    /// Running; destroyed from here on.
    pub(super) source: Update,
    /// Provisioning; running from here on.
    pub(super) target: Update,
}

impl Write for CutOver {
    type Out = Guarded<MovedEnvironment>;
    const ENTITY: &'static str = "vm";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Self::Out>, StoreError> {
        let seen = &self.source.seen;
        // It passes through `draining`; who follows it sees that.
        tx.effects
            .event(&seen.id, State::Draining, &seen.url, &seen.error);
        let answers = apply_round(&[&self.source, &self.target], tx).await?;
        let mut changed = Vec::with_capacity(2);
        for answer in answers {
            match answer {
                Guarded::Updated(record) => changed.push(record),
                Guarded::Stale => return Ok(Applied::Undo(Guarded::Stale)),
                Guarded::Missing => return Ok(Applied::Undo(Guarded::Missing)),
                Guarded::Busy(operation) => return Ok(Applied::Undo(Guarded::Busy(operation))),
            }
        }
        let Ok([source, target]) = <[Environment; 2]>::try_from(changed) else {
            return Ok(Applied::Undo(Guarded::Stale));
        };
        let target = self.hand_over(tx, target).await?;
        Ok(Applied::Keep(Guarded::Updated(MovedEnvironment {
            source,
            target,
        })))
    }
}

impl CutOver {
    /// Gives the target the source's task and age. Its own task was a placeholder and is
    /// forgotten; the source keeps that name to the end, where nobody asks for it.
    async fn hand_over(
        &self,
        tx: &mut Tx<'_>,
        mut target: Environment,
    ) -> Result<Environment, StoreError> {
        let (from, to) = (&self.source.seen, &self.target.seen);
        let (Some(task), Some(placeholder)) = (&from.task_id, &to.task_id) else {
            return Ok(target);
        };
        let sql = "UPDATE environments SET task_id = $2, created_at = $3, \
             activity_at = (SELECT s.activity_at FROM environments AS s WHERE s.id = $4) \
             WHERE id = $1 RETURNING activity_at";
        let values = binds![
            to.id.as_str(),
            task.as_str(),
            from.created_at,
            from.id.as_str()
        ];
        let rows = tx.fetch("hand a task over", sql, values).await?;
        if let Some(row) = rows.first() {
            target.activity_at = row.columns("environments").time("activity_at")?;
        }
        let sql = "UPDATE environments SET task_id = $2 WHERE id = $1";
        let values = binds![from.id.as_str(), placeholder.as_str()];
        tx.execute("take a task away", sql, values).await?;
        let sql = "DELETE FROM tasks WHERE id = $1 AND environment_id = $2";
        let values = binds![placeholder.as_str(), to.id.as_str()];
        tx.execute("forget a placeholder", sql, values).await?;
        let sql = "UPDATE tasks SET environment_id = $3, updated_at = $4 \
             WHERE id = $1 AND environment_id = $2";
        let values = binds![task.as_str(), from.id.as_str(), to.id.as_str(), tx.now];
        tx.execute("move a task", sql, values).await?;
        target.task_id = Some(task.clone());
        target.created_at = from.created_at;
        Ok(target)
    }
}
