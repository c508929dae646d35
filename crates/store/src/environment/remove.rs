//! The transaction that ends an environment.

use std::collections::BTreeMap;

use fuse_model::{EnvironmentId, IllegalTransition, State, TaskId, Trigger, Version};

use super::change::refusal;
use crate::multi_row::{MultiRow, rounds};
use crate::sql::binds;
use crate::tx::Tx;
use crate::writer::{Applied, WriteMany};
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

const DELETE: MultiRow = MultiRow {
    step: "remove environments",
    before: "DELETE FROM environments WHERE (id, version) IN (VALUES ",
    after: ") RETURNING id, task_id",
};

impl WriteMany for Remove {
    type Out = Guarded<()>;
    const ENTITY: &'static str = "vm";

    async fn apply_all(
        writes: &[&Self],
        tx: &mut Tx<'_>,
    ) -> Result<Vec<Applied<Self::Out>>, StoreError> {
        let mut answers = BTreeMap::new();
        for round in rounds(writes.iter().map(|write| &write.id)) {
            let part: Vec<&Self> = round
                .iter()
                .filter_map(|at| writes.get(*at).copied())
                .collect();
            answers.extend(round.into_iter().zip(apply_round(&part, tx).await?));
        }
        Ok(answers.into_values().map(Applied::Keep).collect())
    }
}

/// Removes different environments.
async fn apply_round(writes: &[&Remove], tx: &mut Tx<'_>) -> Result<Vec<Guarded<()>>, StoreError> {
    let rows = writes
        .iter()
        .map(|write| binds![write.id.as_str(), write.version.0])
        .collect();
    let mut tasks = BTreeMap::new();
    for row in DELETE.run(tx, rows).await? {
        let mut columns = row.columns("environments");
        let id = EnvironmentId::new(columns.text("id")?);
        tasks.insert(id, TaskId::new(columns.text("task_id")?));
    }
    let mut answers = Vec::with_capacity(writes.len());
    for write in writes {
        answers.push(match tasks.get(&write.id) {
            Some(task) => {
                write.add_effects(tx, task);
                Guarded::Updated(())
            }
            None => refusal(tx, &write.id, write.version).await?,
        });
    }
    Ok(answers)
}

impl Remove {
    fn add_effects(&self, tx: &mut Tx<'_>, task: &TaskId) {
        tx.effects.free_task(task, &self.id, &self.removal.task);
        tx.effects.release(&self.id);
        tx.effects
            .event(&self.id, self.end, &self.url, &self.removal.error);
        tx.effects.audit(&self.removal.audit);
    }
}
