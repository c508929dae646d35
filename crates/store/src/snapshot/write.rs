//! The writes to snapshots.

use fuse_model::{AuditEntry, EnvironmentId, HostId, Snapshot, SnapshotId, SnapshotState};
use jiff::Timestamp;
use sqlx::AssertSqlSafe;

use super::from_row;
use crate::idempotency::keep_in_tx;
use crate::sql::{Bind, binds, to_json};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{KeptAnswer, StoreError};

/// How to move a snapshot on.
#[derive(Debug, Clone)]
pub struct SnapshotChange {
    /// States that it may be in.
    pub from: &'static [SnapshotState],
    /// The state after.
    pub to: SnapshotState,
    /// Only while it is parent of nothing.
    pub if_leaf: bool,
    /// Only if it was not used since then, and no environment was started from it.
    pub if_unused_since: Option<Timestamp>,
    /// Its last failure.
    pub last_error: String,
    /// Entries to write with it.
    pub audit: Vec<AuditEntry>,
}

impl SnapshotChange {
    /// From any of `from` to `to`, without an error.
    #[must_use]
    pub const fn new(from: &'static [SnapshotState], to: SnapshotState) -> Self {
        Self {
            from,
            to,
            if_leaf: false,
            if_unused_since: None,
            last_error: String::new(),
            audit: Vec::new(),
        }
    }
}

pub(super) struct Insert {
    pub(super) snapshot: Snapshot,
    pub(super) audit: Vec<AuditEntry>,
    pub(super) kept: Option<KeptAnswer>,
}

impl Write for Insert {
    type Out = ();
    const ENTITY: &'static str = "snapshot";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let of = &self.snapshot;
        // Used when it was recorded: `created_at` is by the clock of its host.
        let sql = concat!(
            "INSERT INTO snapshots (",
            crate::snapshot::columns!(),
            ", name, used_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
             $14, $15, $16, $17, $18, $19, $20, $21, $22, $21)"
        );
        let values = binds![
            of.id.as_str(),
            of.environment_id.as_ref().map_or("", EnvironmentId::as_str),
            of.task_id.as_str(),
            of.host_id.as_ref().map_or("", HostId::as_str),
            of.tenant.as_str(),
            of.owner.as_str(),
            of.parent_id.as_str(),
            of.mode.as_str(),
            of.state.as_str(),
            of.kind.as_str(),
            of.layer_key.as_str(),
            of.arch.as_str(),
            of.digest.as_str(),
            of.base_digest.as_str(),
            i64::try_from(of.size_bytes).unwrap_or(i64::MAX),
            of.retention_until,
            to_json("snapshots", "metadata", &of.metadata)?,
            to_json("snapshots", "exports", &of.exports)?,
            of.last_error.as_str(),
            of.created_at,
            of.updated_at,
            of.meta("name")
        ];
        tx.execute("record a snapshot", sql, values).await?;
        if let (Some(kept), Some(environment)) = (&self.kept, &of.environment_id) {
            keep_in_tx(tx, environment, kept).await?;
        }
        tx.effects.audit(&self.audit);
        Ok(Applied::Keep(()))
    }
}

/// Adds what is known once the bytes are there.
pub(super) struct Complete {
    pub(super) snapshot: Snapshot,
    pub(super) audit: Vec<AuditEntry>,
}

impl Write for Complete {
    type Out = bool;
    const ENTITY: &'static str = "snapshot";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<bool>, StoreError> {
        let of = &self.snapshot;
        let sql = "UPDATE snapshots SET state = 'ready', kind = $2, digest = $3, \
             size_bytes = $4, created_at = $5, updated_at = $6, base_digest = $7, \
             metadata = $8 WHERE id = $1 AND state = 'creating'";
        let values = binds![
            of.id.as_str(),
            of.kind.as_str(),
            of.digest.as_str(),
            i64::try_from(of.size_bytes).unwrap_or(i64::MAX),
            of.created_at,
            tx.now,
            of.base_digest.as_str(),
            to_json("snapshots", "metadata", &of.metadata)?
        ];
        let completed = tx.execute("complete a snapshot", sql, values).await? > 0;
        if completed {
            tx.effects.audit(&self.audit);
        }
        Ok(Applied::Keep(completed))
    }
}

/// While one is being taken its environment is in that operation. Copies have none.
pub(super) struct FailAbandoned {
    pub(super) why: String,
}

impl Write for FailAbandoned {
    type Out = ();
    const ENTITY: &'static str = "snapshot";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "UPDATE snapshots SET state = 'error', last_error = $1, updated_at = $2 \
             WHERE state = 'creating' AND environment_id <> '' AND NOT EXISTS (SELECT 1 FROM environments AS e \
             WHERE e.id = snapshots.environment_id AND e.op_kind = 'snapshot')";
        let values = binds![self.why.as_str(), tx.now];
        tx.execute("give up abandoned snapshots", sql, values)
            .await?;
        Ok(Applied::Keep(()))
    }
}

pub(super) struct ChangeState {
    pub(super) id: SnapshotId,
    pub(super) change: SnapshotChange,
}

impl Write for ChangeState {
    type Out = Option<Snapshot>;
    const ENTITY: &'static str = "snapshot";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<Self::Out>, StoreError> {
        let change = &self.change;
        // Names of a closed list: nothing in them needs quoting.
        let from: Vec<String> = change
            .from
            .iter()
            .map(|state| format!("'{}'", state.as_str()))
            .collect();
        let leaf = if change.if_leaf {
            "AND NOT EXISTS (SELECT 1 FROM snapshots AS child \
             WHERE child.parent_id = snapshots.id AND child.state <> 'deleting') "
        } else {
            ""
        };
        let unused = if change.if_unused_since.is_some() {
            "AND used_at <= $5 AND NOT EXISTS (SELECT 1 FROM environment_seeds AS seed \
             WHERE seed.snapshot_id = snapshots.id) "
        } else {
            ""
        };
        let sql = format!(
            "UPDATE snapshots SET state = $2, last_error = $3, updated_at = $4 \
             WHERE id = $1 AND state IN ({}) {leaf}{unused}RETURNING {}",
            from.join(", "),
            crate::snapshot::columns!()
        );
        let mut values = binds![
            self.id.as_str(),
            change.to.as_str(),
            change.last_error.as_str(),
            tx.now
        ];
        values.extend(change.if_unused_since.map(Bind::from));
        let rows = tx
            .fetch("change a snapshot", AssertSqlSafe(sql), values)
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Applied::Keep(None));
        };
        let snapshot = from_row(row)?;
        tx.effects.audit(&change.audit);
        Ok(Applied::Keep(Some(snapshot)))
    }
}

pub(super) struct Remove {
    pub(super) id: SnapshotId,
    pub(super) audit: Vec<AuditEntry>,
}

impl Write for Remove {
    type Out = bool;
    const ENTITY: &'static str = "snapshot";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<bool>, StoreError> {
        let sql = "DELETE FROM snapshots WHERE id = $1";
        let removed = tx
            .execute("remove a snapshot", sql, binds![self.id.as_str()])
            .await?;
        if removed > 0 {
            tx.effects.audit(&self.audit);
        }
        Ok(Applied::Keep(removed > 0))
    }
}

pub(super) struct Touch {
    pub(super) id: SnapshotId,
}

impl Write for Touch {
    type Out = bool;
    const ENTITY: &'static str = "snapshot";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<bool>, StoreError> {
        let sql = "UPDATE snapshots SET used_at = $2 WHERE id = $1 AND state = 'ready'";
        let touched = tx
            .execute("note a use", sql, binds![self.id.as_str(), tx.now])
            .await?;
        Ok(Applied::Keep(touched > 0))
    }
}

pub(super) struct PruneLineage {
    pub(super) prefix: &'static str,
    pub(super) limit: u32,
}

impl Write for PruneLineage {
    type Out = ();
    const ENTITY: &'static str = "snapshot";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        let sql = "DELETE FROM snapshots WHERE id IN (SELECT s.id FROM snapshots AS s \
             WHERE s.id LIKE $1 AND NOT EXISTS \
             (SELECT 1 FROM environments AS e WHERE e.id = s.environment_id) LIMIT $2)";
        let values = binds![format!("{}%", self.prefix), self.limit];
        tx.execute("prune lineage", sql, values).await?;
        Ok(Applied::Keep(()))
    }
}
