//! The transaction that changes an environment, with or without moving it on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fuse_model::{
    Environment, EnvironmentId, IllegalTransition, Operation, OperationKind, State, Trigger,
    Version,
};
use jiff::Timestamp;

use super::lease::expiry;
use super::operation;
use crate::multi_row::{MultiRow, rounds};
use crate::presence::is_alive;
use crate::sql::{Bind, Row, binds, to_json};
use crate::tx::Tx;
use crate::writer::{Applied, WriteMany};
use crate::{Change, Guarded, OperationChange, StoreError};

/// `column8` says what happens to the operation lease: see [`Lease`].
const UPDATE: MultiRow = MultiRow {
    step: "change environments",
    before: "UPDATE environments SET version = environments.version + 1, state = r.column3, \
         url = r.column4, error = r.column5, endpoints = r.column6, \
         guest_token = COALESCE(r.column7, guest_token), \
         credentials_at = CASE WHEN r.column7 IS NULL THEN credentials_at ELSE r.column12 END, \
         op_kind = CASE r.column8 WHEN 0 THEN op_kind ELSE r.column9 END, \
         op_owner = CASE r.column8 WHEN 0 THEN op_owner ELSE r.column10 END, \
         op_expires_at = CASE r.column8 WHEN 0 THEN op_expires_at ELSE r.column11 END, \
         updated_at = r.column12, boot_id = r.column14, \
         guest_version = r.column15 FROM (VALUES ",
    after: concat!(
        ") AS r WHERE environments.id = r.column1 AND environments.version = r.column2 \
         AND (r.column8 <> 2 OR op_kind IS NULL OR op_owner = r.column10 \
              OR op_expires_at <= r.column12 OR NOT ",
        is_alive!("environments.op_owner", "r.column13"),
        ") RETURNING environments.id"
    ),
};

/// What a row of [`UPDATE`] does to the lease.
#[derive(Debug, Clone, Copy)]
enum Lease {
    Keep = 0,
    Set = 1,
    SetIfFree = 2,
}

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

impl WriteMany for Update {
    type Out = Guarded<Environment>;
    const ENTITY: &'static str = "vm";

    async fn apply_all(
        writes: &[&Self],
        tx: &mut Tx<'_>,
    ) -> Result<Vec<Applied<Self::Out>>, StoreError> {
        let mut answers = BTreeMap::new();
        for round in rounds(writes.iter().map(|write| &write.seen.id)) {
            let part: Vec<&Self> = round
                .iter()
                .filter_map(|at| writes.get(*at).copied())
                .collect();
            answers.extend(round.into_iter().zip(apply_round(&part, tx).await?));
        }
        Ok(answers.into_values().map(Applied::Keep).collect())
    }
}

/// Changes different environments.
pub(super) async fn apply_round(
    writes: &[&Update],
    tx: &mut Tx<'_>,
) -> Result<Vec<Guarded<Environment>>, StoreError> {
    let mut afters = Vec::with_capacity(writes.len());
    let mut rows = Vec::with_capacity(writes.len());
    for write in writes {
        let after = write.after(tx)?;
        rows.push(write.row(tx, &after)?);
        afters.push(after);
    }
    let returned = UPDATE.run(tx, rows).await?;
    let id = |row: &Row| Ok(EnvironmentId::new(row.columns("environments").text("id")?));
    let changed: BTreeSet<_> = returned.iter().map(id).collect::<Result<_, StoreError>>()?;
    let mut answers = Vec::with_capacity(writes.len());
    for (write, after) in writes.iter().zip(afters) {
        answers.push(if changed.contains(&after.id) {
            write.add_effects(tx, &after);
            Guarded::Updated(after)
        } else {
            refusal(tx, &write.seen.id, write.seen.version).await?
        });
    }
    Ok(answers)
}

impl Update {
    fn add_effects(&self, tx: &mut Tx<'_>, after: &Environment) {
        if let Some(task) = &self.seen.task_id {
            tx.effects.task(task, &self.seen.id, &self.change.task);
        }
        if self.to != self.seen.state {
            tx.effects
                .event(&after.id, after.state, &after.url, &after.error);
        }
        tx.effects.audit(&self.change.audit);
    }

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
        if let Some(boot_id) = &change.boot_id {
            after.boot_id.clone_from(boot_id);
        }
        if let Some(version) = &change.guest_version {
            after.guest_version.clone_from(version);
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

    fn row(&self, tx: &Tx<'_>, after: &Environment) -> Result<Vec<Bind>, StoreError> {
        let lease = match self.change.operation {
            OperationChange::Keep => Lease::Keep,
            OperationChange::End | OperationChange::Seize(..) => Lease::Set,
            OperationChange::Begin(..) => Lease::SetIfFree,
        };
        let operation = after.operation.as_ref();
        Ok(binds![
            after.id.as_str(),
            self.seen.version.0,
            after.state.as_str(),
            after.url.as_str(),
            after.error.as_str(),
            to_json("environments", "endpoints", &after.endpoints)?,
            self.token.clone(),
            lease as i64,
            operation.map(|operation| operation.kind.as_str()),
            operation.map(|operation| operation.owner.as_str()),
            operation.map(|operation| operation.expires_at),
            tx.now,
            tx.alive_since,
            after.boot_id.as_str(),
            after.guest_version.as_str()
        ])
    }
}

/// A lease of this replica, from now on.
pub(super) fn taken(
    tx: &Tx<'_>,
    kind: OperationKind,
    ttl: Duration,
) -> Result<Operation, StoreError> {
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
