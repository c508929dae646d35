//! The transaction of a batch, as the writes in it see it.

use fuse_model::ReplicaId;
use jiff::Timestamp;
use sqlx::SqlSafeStr;

use crate::StoreError;
use crate::core::Core;
use crate::effects::Effects;
use crate::pool::Pooled;
use crate::sql::{Bind, Row};

/// An open transaction.
pub(crate) struct Tx<'w> {
    conn: Pooled<'w>,
    /// The time of the batch.
    pub(crate) now: Timestamp,
    /// The same for what is forgotten for its age.
    pub(crate) settled: Timestamp,
    /// Replicas seen after this time are alive.
    pub(crate) alive_since: i64,
    /// This process.
    pub(crate) replica: &'w ReplicaId,
    /// Whether the batch is one write. Only then may it give up alone.
    pub(crate) alone: bool,
    /// What is written at the end of the batch.
    pub(crate) effects: Effects,
}

impl<'w> Tx<'w> {
    /// On a connection that has begun.
    pub(crate) fn new(conn: Pooled<'w>, core: &'w Core, alone: bool) -> Self {
        let now = core.clock.now();
        Self {
            conn,
            now,
            settled: core.clock.settled(),
            alive_since: core.pulse.alive_since(now),
            replica: &core.replica_id,
            alone,
            effects: Effects::default(),
        }
    }

    /// Runs a statement; `step` completes "the database refused to …".
    pub(crate) async fn execute(
        &mut self,
        step: &'static str,
        sql: impl SqlSafeStr + Send,
        binds: Vec<Bind>,
    ) -> Result<u64, StoreError> {
        let result = self.conn.execute(sql, binds).await;
        result.map_err(|error| StoreError::from_sqlx(step, error))
    }

    /// Runs a statement that answers rows.
    pub(crate) async fn fetch(
        &mut self,
        step: &'static str,
        sql: impl SqlSafeStr + Send,
        binds: Vec<Bind>,
    ) -> Result<Vec<Row>, StoreError> {
        let result = self.conn.fetch(sql, binds).await;
        result.map_err(|error| StoreError::from_sqlx(step, error))
    }

    /// Makes it durable.
    pub(crate) async fn commit(&mut self) -> Result<(), StoreError> {
        self.conn
            .batch("COMMIT")
            .await
            .map_err(StoreError::from_commit)
    }

    /// Takes everything back; a connection on which that fails is given up.
    pub(crate) async fn roll_back(mut self) {
        if self.conn.batch("ROLLBACK").await.is_err() {
            self.conn.discard();
        }
    }
}
