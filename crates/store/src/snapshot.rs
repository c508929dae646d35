//! Snapshots. A record's state only ever changes from the states that the caller names,
//! so that of two that are at one snapshot only one goes on.

mod cache;
mod write;

use fuse_model::{
    AuditEntry, EnvironmentId, HostId, Snapshot, SnapshotId, SnapshotState, to_micros,
};
use jiff::Timestamp;
use sqlx::AssertSqlSafe;

use crate::sql::{Bind, Columns, Row, binds};
use crate::{KeptAnswer, Listing, Page, Store, StoreError};

pub use cache::{CachedLayer, Holder};
pub use write::SnapshotChange;

macro_rules! columns {
    () => {
        "id, environment_id, task_id, host_id, tenant, owner, parent_id, mode, state, kind, \
         layer_key, arch, digest, base_digest, size_bytes, retention_until, metadata, exports, \
         last_error, created_at, \
         updated_at"
    };
}
use columns;

macro_rules! select {
    ($rest:expr) => {
        concat!(
            "SELECT ",
            crate::snapshot::columns!(),
            " FROM snapshots ",
            $rest
        )
    };
}

/// How long a snapshot is left alone that its host could not delete.
const TRY_AGAIN: std::time::Duration = std::time::Duration::from_secs(3600);

/// Where a page of snapshots starts: they are listed newest first.
pub type SnapshotPlace = (Timestamp, SnapshotId);

/// Which snapshots to list; `None` matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotFilter {
    /// Of this environment.
    pub environment_id: Option<String>,
    /// Of this task.
    pub task_id: Option<String>,
    /// Made by this API key.
    pub owner: Option<String>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// In this state.
    pub state: Option<SnapshotState>,
    /// Of this mode.
    pub mode: Option<String>,
    /// With this name in their metadata.
    pub name: Option<String>,
    /// With this layer key.
    pub layer_key: Option<String>,
    /// Of this architecture.
    pub arch: Option<String>,
    /// On this host.
    pub host_id: Option<String>,
}

/// What a tenant has of what counts against its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotUsage {
    /// Snapshots.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Store {
    /// Records a snapshot that a host has taken, and what a repeat of the request is told.
    ///
    /// # Errors
    /// The database fails, or the id is taken.
    pub async fn snapshot_insert(
        &self,
        snapshot: Snapshot,
        audit: Vec<AuditEntry>,
        kept: Option<KeptAnswer>,
    ) -> Result<(), StoreError> {
        let write = write::Insert {
            snapshot,
            audit,
            kept,
        };
        self.write(write).await
    }

    /// One snapshot.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_get(&self, id: &SnapshotId) -> Result<Option<Snapshot>, StoreError> {
        let sql = select!("WHERE id = $1");
        let rows = self
            .read("read a snapshot", sql, binds![id.as_str()])
            .await?;
        rows.first().map(from_row).transpose()
    }

    /// A page of snapshots, newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_list(
        &self,
        filter: &SnapshotFilter,
        page: &Page<SnapshotPlace>,
    ) -> Result<Listing<Snapshot, SnapshotPlace>, StoreError> {
        let (sql, values) = list_sql(filter, page);
        let rows = self
            .read("list snapshots", AssertSqlSafe(sql), values)
            .await?;
        let items = rows.iter().map(from_row).collect::<Result<_, _>>()?;
        Ok(Listing::cut(items, page.limit, |item: &Snapshot| {
            (item.created_at, item.id.clone())
        }))
    }

    /// The newest usable snapshot of an environment.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_newest(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Option<Snapshot>, StoreError> {
        let sql = select!(
            "WHERE environment_id = $1 AND state IN ('ready', 'restoring') \
             ORDER BY created_at DESC, id DESC LIMIT 1"
        );
        let rows = self
            .read(
                "read the newest snapshot",
                sql,
                binds![environment.as_str()],
            )
            .await?;
        rows.first().map(from_row).transpose()
    }

    /// The newest usable layer with this key.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_resolve(
        &self,
        tenant: &str,
        layer_key: &str,
        arch: &str,
    ) -> Result<Option<Snapshot>, StoreError> {
        if layer_key.is_empty() {
            return Ok(None);
        }
        let sql = select!(
            "WHERE tenant = $1 AND layer_key = $2 AND layer_key <> '' AND arch = $3 \
             AND state = 'ready' ORDER BY created_at DESC, id DESC LIMIT 1"
        );
        let values = binds![tenant, layer_key, arch];
        let rows = self.read("resolve a layer", sql, values).await?;
        rows.first().map(from_row).transpose()
    }

    /// What counts against a tenant's quota; build layers do not.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_usage(&self, tenant: &str) -> Result<SnapshotUsage, StoreError> {
        let sql = "SELECT COUNT(*), CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) FROM snapshots \
             WHERE tenant = $1 AND mode <> 'build' \
             AND state IN ('creating', 'ready', 'restoring')";
        let rows = self.read("count snapshots", sql, binds![tenant]).await?;
        let row = rows.first().ok_or_else(|| StoreError::Corrupt {
            table: "snapshots",
            column: "size_bytes",
            reason: "there is no sum".to_owned(),
        })?;
        let mut columns = row.columns("snapshots");
        Ok(SnapshotUsage {
            count: columns.small("count")?,
            bytes: columns.small("size_bytes")?,
        })
    }

    /// Snapshots that are being deleted, or that may be: past their retention, no layer,
    /// parent of nothing, and not the newest of an environment that exists. One that could not be
    /// deleted is left alone for a while. At most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_list_collectable(&self, limit: u32) -> Result<Vec<Snapshot>, StoreError> {
        let sql = select!(
            "WHERE state = 'deleting' OR (mode <> 'build' \
             AND (state = 'ready' OR state = 'error' AND updated_at <= $3) \
             AND retention_until IS NOT NULL AND retention_until <= $1 \
             AND NOT EXISTS (SELECT 1 FROM snapshots AS child \
                 WHERE child.parent_id = snapshots.id AND child.state <> 'deleting') \
             AND (EXISTS (SELECT 1 FROM snapshots AS newer \
                 WHERE newer.environment_id = snapshots.environment_id \
                 AND (newer.created_at > snapshots.created_at \
                     OR newer.created_at = snapshots.created_at AND newer.id > snapshots.id)) \
                 OR NOT EXISTS (SELECT 1 FROM environments \
                     WHERE environments.id = snapshots.environment_id))) \
             ORDER BY updated_at, id LIMIT $2"
        );
        let now = self.now();
        let again = now.as_microsecond().saturating_sub(to_micros(TRY_AGAIN));
        let values = binds![self.settled_now(), limit, again];
        let rows = self.read("list old snapshots", sql, values).await?;
        rows.iter().map(from_row).collect()
    }

    /// Whether another snapshot, not on its way out, has this one as its parent.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_has_child(&self, id: &SnapshotId) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM snapshots WHERE parent_id = $1 AND state <> 'deleting' LIMIT 1";
        let rows = self
            .read("look for a child", sql, binds![id.as_str()])
            .await?;
        Ok(!rows.is_empty())
    }

    /// Completes the record of a snapshot that is being taken. `false` if there is none
    /// any more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_complete(
        &self,
        snapshot: Snapshot,
        audit: Vec<AuditEntry>,
    ) -> Result<bool, StoreError> {
        self.write(write::Complete { snapshot, audit }).await
    }

    /// The snapshots of an environment that are being taken.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_list_creating(
        &self,
        environment: &EnvironmentId,
    ) -> Result<Vec<Snapshot>, StoreError> {
        let sql = select!("WHERE environment_id = $1 AND state = 'creating' ORDER BY id");
        let values = binds![environment.as_str()];
        let rows = self
            .read("list snapshots in the making", sql, values)
            .await?;
        rows.iter().map(from_row).collect()
    }

    /// Gives up snapshots that are being taken of environments that nobody takes one of.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_fail_abandoned(&self, why: String) -> Result<(), StoreError> {
        self.write(write::FailAbandoned { why }).await
    }

    /// Moves a snapshot on if it is in one of the states that `change` names. `None` if
    /// it is not, or is gone.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_change(
        &self,
        id: &SnapshotId,
        change: SnapshotChange,
    ) -> Result<Option<Snapshot>, StoreError> {
        let id = id.clone();
        self.write(write::ChangeState { id, change }).await
    }

    /// Removes the record of a snapshot. `false` if there is none any more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_remove(
        &self,
        id: &SnapshotId,
        audit: Vec<AuditEntry>,
    ) -> Result<bool, StoreError> {
        let id = id.clone();
        self.write(write::Remove { id, audit }).await
    }

    /// Removes records of lineage (their ids start with `prefix`) whose environment is
    /// gone, so that they do not keep the snapshots that they name. At most `limit`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_prune_lineage(
        &self,
        prefix: &'static str,
        limit: u32,
    ) -> Result<(), StoreError> {
        self.write(write::PruneLineage { prefix, limit }).await
    }

    /// Notes that a snapshot is used, which keeps it from being collected for a while. `false` if
    /// it is not ready any more.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_touch(&self, id: &SnapshotId) -> Result<bool, StoreError> {
        self.write(write::Touch { id: id.clone() }).await
    }
}

/// The statement of a listing, with the filters that are set.
fn list_sql(filter: &SnapshotFilter, page: &Page<SnapshotPlace>) -> (String, Vec<Bind>) {
    let mut sql = select!("WHERE 1 = 1").to_owned();
    let mut values = binds![i64::from(page.limit) + 1];
    let mut and = |condition: &str, value: Bind| {
        values.push(value);
        sql.push_str(&condition.replace('?', &format!("${}", values.len())));
    };
    let texts = [
        (" AND environment_id = ?", &filter.environment_id),
        (" AND task_id = ?", &filter.task_id),
        (" AND owner = ?", &filter.owner),
        (" AND tenant = ?", &filter.tenant),
        (" AND mode = ?", &filter.mode),
        (" AND name = ?", &filter.name),
        (" AND layer_key = ?", &filter.layer_key),
        (" AND arch = ?", &filter.arch),
        (" AND host_id = ?", &filter.host_id),
    ];
    for (condition, value) in texts {
        if let Some(value) = value {
            and(condition, Bind::from(value.as_str()));
        }
    }
    if let Some(state) = filter.state {
        and(" AND state = ?", Bind::from(state.as_str()));
    }
    if let Some((at, id)) = &page.after {
        values.push(Bind::from(at.as_microsecond()));
        values.push(Bind::from(id.as_str()));
        let at = values.len() - 1;
        sql.push_str(&format!(" AND (created_at, id) < (${at}, ${})", at + 1));
    }
    sql.push_str(" ORDER BY created_at DESC, id DESC LIMIT $1");
    (sql, values)
}

fn from_row(row: &Row) -> Result<Snapshot, StoreError> {
    from_columns(&mut row.columns("snapshots"))
}

fn from_columns(columns: &mut Columns<'_>) -> Result<Snapshot, StoreError> {
    let some = |text: String| (!text.is_empty()).then_some(text);
    Ok(Snapshot {
        id: SnapshotId::new(columns.text("id")?),
        environment_id: some(columns.text("environment_id")?).map(EnvironmentId::new),
        task_id: columns.text("task_id")?,
        host_id: some(columns.text("host_id")?).map(HostId::new),
        tenant: columns.text("tenant")?,
        owner: columns.text("owner")?,
        parent_id: columns.text("parent_id")?,
        mode: columns.text("mode")?,
        state: columns.parsed("state")?,
        kind: columns.parsed("kind")?,
        layer_key: columns.text("layer_key")?,
        arch: columns.text("arch")?,
        digest: columns.text("digest")?,
        base_digest: columns.text("base_digest")?,
        size_bytes: columns.small("size_bytes")?,
        retention_until: columns.opt_time("retention_until")?,
        metadata: columns.json("metadata")?,
        exports: columns.json("exports")?,
        last_error: columns.text("last_error")?,
        created_at: columns.time("created_at")?,
        updated_at: columns.time("updated_at")?,
    })
}

/// A moment this far from `at`; the end of time if there is none.
#[must_use]
pub fn later(at: Timestamp, by: std::time::Duration) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond().saturating_add(to_micros(by)))
        .unwrap_or(Timestamp::MAX)
}
