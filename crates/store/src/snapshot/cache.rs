//! Layers and copies of snapshots: who has one, which are in use, and since when they are not.

use fuse_model::{EnvironmentId, HostId, Snapshot, SnapshotId, SnapshotState, to_micros};
use jiff::Timestamp;

use super::from_columns;
use crate::sql::binds;
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Store, StoreError};

/// A host that has an artifact, under the id that it has there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The host.
    pub host: HostId,
    /// The id.
    pub snapshot: SnapshotId,
}

/// What collection looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedLayer {
    /// The record.
    pub snapshot: Snapshot,
    /// When it was last resolved, started from or copied.
    pub used_at: Timestamp,
    /// Whether an environment was started from it, or another record has it as parent.
    pub is_held: bool,
    /// Whether it is a copy of something that is gone.
    pub is_stray: bool,
}

impl Store {
    /// The hosts that have what `snapshot` is of, one record each, sorted by host. Without
    /// a digest none is known.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_holders(&self, snapshot: &Snapshot) -> Result<Vec<Holder>, StoreError> {
        if snapshot.digest.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT host_id, MIN(id) AS id FROM snapshots \
             WHERE tenant = $1 AND digest = $2 AND digest <> '' AND base_digest = $3 \
             AND state = 'ready' AND kind = 'disk' AND host_id <> '' \
             GROUP BY host_id ORDER BY host_id";
        let (tenant, digest) = (snapshot.tenant.as_str(), snapshot.digest.as_str());
        let values = binds![tenant, digest, snapshot.base_digest.as_str()];
        let rows = self.read("find an artifact", sql, values).await?;
        let holders = rows.iter().map(|row| {
            let mut columns = row.columns("snapshots");
            Ok(Holder {
                host: HostId::new(columns.text("host_id")?),
                snapshot: SnapshotId::new(columns.text("id")?),
            })
        });
        holders.collect()
    }

    /// Copies that a host is to have and that are not recorded as there.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_list_copies_begun(&self) -> Result<Vec<Snapshot>, StoreError> {
        let sql = concat!(
            "SELECT ",
            crate::snapshot::columns!(),
            " FROM snapshots WHERE state = 'creating' AND environment_id = '' ORDER BY id"
        );
        let rows = self.read("list unfinished copies", sql, Vec::new()).await?;
        rows.iter()
            .map(|row| from_columns(&mut row.columns("snapshots")))
            .collect()
    }

    /// What a tenant has of a key: pairs of architecture and state, each once.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_near_misses(
        &self,
        tenant: &str,
        layer_key: &str,
    ) -> Result<Vec<(String, SnapshotState)>, StoreError> {
        let sql = "SELECT DISTINCT arch, state FROM snapshots \
             WHERE tenant = $1 AND layer_key = $2 AND layer_key <> '' ORDER BY arch, state";
        let rows = self.read("look for near misses", sql, binds![tenant, layer_key]);
        let rows = rows.await?;
        let found = rows.iter().map(|row| {
            let mut columns = row.columns("snapshots");
            Ok((columns.text("arch")?, columns.parsed("state")?))
        });
        found.collect()
    }

    /// Every layer and copy that is ready, the least recently used first. One that could not be
    /// deleted is left alone for a while.
    ///
    /// # Errors
    /// The database fails.
    pub async fn snapshot_list_cached(&self) -> Result<Vec<CachedLayer>, StoreError> {
        let sql = concat!(
            "SELECT ",
            crate::snapshot::columns!(),
            ", used_at, \
             CAST(CASE WHEN EXISTS (SELECT 1 FROM environment_seeds AS seed \
                 WHERE seed.snapshot_id = snapshots.id) \
               OR EXISTS (SELECT 1 FROM snapshots AS child \
                 WHERE child.parent_id = snapshots.id AND child.state <> 'deleting') \
               THEN 1 ELSE 0 END AS BIGINT) AS is_held, \
             CAST(CASE WHEN layer_key = '' AND NOT EXISTS (SELECT 1 FROM snapshots AS source \
                 WHERE source.tenant = snapshots.tenant AND source.digest = snapshots.digest \
                 AND source.environment_id <> '') \
               THEN 1 ELSE 0 END AS BIGINT) AS is_stray \
             FROM snapshots WHERE mode = 'build' \
             AND (state = 'ready' OR state = 'error' AND updated_at <= $1) \
             AND (layer_key <> '' OR environment_id = '') ORDER BY used_at, id"
        );
        let now = self.now().as_microsecond();
        let again = now.saturating_sub(to_micros(super::TRY_AGAIN));
        let rows = self.read("list layers", sql, binds![again]).await?;
        let layers = rows.iter().map(|row| {
            let mut columns = row.columns("snapshots");
            let snapshot = from_columns(&mut columns)?;
            Ok(CachedLayer {
                snapshot,
                used_at: columns.time("used_at")?,
                is_held: columns.int("is_held")? != 0,
                is_stray: columns.int("is_stray")? != 0,
            })
        });
        layers.collect()
    }

    /// Notes what an environment is started from.
    ///
    /// # Errors
    /// The database fails, or the environment is gone.
    pub async fn environment_note_seed(
        &self,
        environment: &EnvironmentId,
        snapshot: &SnapshotId,
    ) -> Result<(), StoreError> {
        let write = NoteSeed {
            environment: environment.clone(),
            snapshot: snapshot.clone(),
        };
        self.write(write).await
    }
}

struct NoteSeed {
    environment: EnvironmentId,
    snapshot: SnapshotId,
}

impl Write for NoteSeed {
    type Out = ();
    const ENTITY: &'static str = "vm";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        // Both are used: what the environment was asked to start from, and the copy of it.
        let sql = "INSERT INTO environment_seeds (environment_id, snapshot_id) \
             SELECT id, $2 FROM environments WHERE id = $1 \
             ON CONFLICT (environment_id) DO UPDATE SET snapshot_id = excluded.snapshot_id";
        let values = binds![self.environment.as_str(), self.snapshot.as_str()];
        tx.execute("note a seed", sql, values).await?;
        let sql = "UPDATE snapshots SET used_at = $2 WHERE id = $1";
        tx.execute("note a use", sql, binds![self.snapshot.as_str(), tx.now])
            .await?;
        Ok(Applied::Keep(()))
    }
}
