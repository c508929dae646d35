//! The transaction that changes an environment, with or without moving it on.

use std::time::Duration;

use fuse_model::{
    Environment, EnvironmentId, IllegalTransition, Operation, OperationKind, State, TaskId,
    TaskStatus, Trigger, Version,
};
use jiff::Timestamp;

use super::{expiry, operation};
use crate::presence::{alive_since, is_alive};
use crate::sql::{Bind, binds, to_json};
use crate::writer::{Applied, Tx, Write};
use crate::{Change, Guarded, OperationChange, StoreError, TaskChange};

macro_rules! update {
    ($operation:expr, $guard:expr) => {
        concat!(
            "UPDATE environments SET version = version + 1, state = $3, url = $4, error = $5, \
             endpoints = $6, updated_at = $7, guest_token = COALESCE($8, guest_token)",
            $operation,
            " WHERE id = $1 AND version = $2",
            $guard
        )
    };
}

const KEEP: &str = update!("", "");
const SEIZE: &str = update!(", op_kind = $9, op_owner = $10, op_expires_at = $11", "");
const BEGIN: &str = update!(
    ", op_kind = $9, op_owner = $10, op_expires_at = $11",
    concat!(
        " AND (op_kind IS NULL OR op_owner = $10 OR op_expires_at <= $7 OR NOT ",
        is_alive!("environments.op_owner", "$12"),
        ")"
    )
);
const END: &str = update!(
    ", op_kind = NULL, op_owner = NULL, op_expires_at = NULL",
    ""
);

/// The state after `trigger`, if the record stays.
pub(super) fn next_stored(from: State, trigger: Trigger) -> Result<State, IllegalTransition> {
    let to = from.next(trigger)?;
    if to.is_terminal() {
        return Err(IllegalTransition { from, trigger });
    }
    Ok(to)
}

pub(super) struct Update {
    pub(super) seen: Environment,
    pub(super) to: State,
    pub(super) change: Change,
    /// The new guest token, sealed.
    pub(super) token: Option<Vec<u8>>,
}

impl Write for Update {
    type Out = Guarded<Environment>;

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Self::Out>, StoreError> {
        let after = self.after(tx)?;
        let (sql, values) = self.statement(tx, &after)?;
        if tx.execute("change an environment", sql, values).await? == 0 {
            return Ok(Applied::Keep(
                refusal(tx, &self.seen.id, self.seen.version).await?,
            ));
        }
        if let Some(task) = &self.seen.task_id {
            change_task(tx, task, &self.seen.id, &self.change.task).await?;
        }
        if self.to != self.seen.state {
            tx.event(&after.id, after.state, &after.url, &after.error);
        }
        tx.audit(&self.change.audit);
        Ok(Applied::Keep(Guarded::Updated(after)))
    }
}

impl Update {
    /// The record as it will be.
    fn after(&self, tx: &Tx<'_>) -> Result<Environment, StoreError> {
        let mut after = self.seen.clone();
        after.version = after.version.next();
        after.state = self.to;
        after.updated_at = tx.now;
        if self.to == State::Destroying {
            after.task_id = None;
        }
        let change = &self.change;
        if let Some(url) = &change.url {
            after.url.clone_from(url);
        }
        if let Some(error) = &change.error {
            after.error.clone_from(error);
        }
        if let Some(endpoints) = &change.endpoints {
            after.endpoints.clone_from(endpoints);
        }
        match change.operation {
            OperationChange::Keep => {}
            OperationChange::End => after.operation = None,
            OperationChange::Begin(kind, ttl) | OperationChange::Seize(kind, ttl) => {
                after.operation = Some(taken(tx, kind, ttl)?);
            }
        }
        Ok(after)
    }

    fn statement(
        &self,
        tx: &Tx<'_>,
        after: &Environment,
    ) -> Result<(&'static str, Vec<Bind>), StoreError> {
        let mut values = binds![
            after.id.as_str(),
            self.seen.version.0,
            after.state.as_str(),
            after.url.as_str(),
            after.error.as_str(),
            to_json("environments", "endpoints", &after.endpoints)?,
            tx.now,
            self.token.clone()
        ];
        let sql = match self.change.operation {
            OperationChange::Keep => KEEP,
            OperationChange::End => END,
            OperationChange::Seize(kind, ttl) => {
                values.extend(binds![
                    kind.as_str(),
                    tx.replica.as_str(),
                    expiry(tx.now, ttl)
                ]);
                SEIZE
            }
            OperationChange::Begin(kind, ttl) => {
                values.extend(binds![
                    kind.as_str(),
                    tx.replica.as_str(),
                    expiry(tx.now, ttl)
                ]);
                values.extend(binds![alive_since(tx.now)]);
                BEGIN
            }
        };
        Ok((sql, values))
    }
}

fn taken(tx: &Tx<'_>, kind: OperationKind, ttl: Duration) -> Result<Operation, StoreError> {
    let expires_at = Timestamp::from_microsecond(expiry(tx.now, ttl));
    Ok(Operation {
        kind,
        owner: tx.replica.clone(),
        expires_at: expires_at.map_err(|error| StoreError::Corrupt {
            table: "environments",
            column: "op_expires_at",
            reason: error.to_string(),
        })?,
    })
}

/// Why a guarded write changed nothing.
pub(super) async fn refusal<T>(
    tx: &mut Tx<'_>,
    id: &EnvironmentId,
    version: Version,
) -> Result<Guarded<T>, StoreError> {
    let sql = "SELECT version, op_kind, op_owner, op_expires_at FROM environments WHERE id = $1";
    let rows = tx
        .fetch("look up an environment", sql, binds![id.as_str()])
        .await?;
    let Some(row) = rows.first() else {
        return Ok(Guarded::Missing);
    };
    let mut columns = row.columns("environments");
    if columns.int("version")? != version.0 {
        return Ok(Guarded::Stale);
    }
    // The version is still the one that was seen, so the lease was in the way,
    // unless that was given back in this very moment.
    Ok(operation(&mut columns)?.map_or(Guarded::Stale, Guarded::Busy))
}

/// Changes the task, if it is still this environment's.
pub(super) async fn change_task(
    tx: &mut Tx<'_>,
    task: &TaskId,
    id: &EnvironmentId,
    change: &TaskChange,
) -> Result<(), StoreError> {
    let Some((status, error)) = outcome(change) else {
        return Ok(());
    };
    let sql = "UPDATE tasks SET status = $3, last_error = $4, updated_at = $5 \
         WHERE id = $1 AND environment_id = $2";
    let values = binds![task.as_str(), id.as_str(), status.as_str(), error, tx.now];
    tx.execute("change a task", sql, values).await.map(drop)
}

/// Status and error text that a change leaves, if it leaves any.
pub(super) fn outcome(change: &TaskChange) -> Option<(TaskStatus, &str)> {
    match change {
        TaskChange::Keep => None,
        TaskChange::Running => Some((TaskStatus::Running, "")),
        TaskChange::Completed => Some((TaskStatus::Completed, "")),
        TaskChange::Failed(error) => Some((TaskStatus::Failed, error)),
    }
}
