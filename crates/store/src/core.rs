//! What the parts of an open store share: connections, clock, identity.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fuse_model::{FleetId, ReplicaId};
use sqlx::SqlSafeStr;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::FleetClock;
use crate::connect::FileLock;
use crate::error::is_lost;
use crate::pool::Pool;
use crate::pulse::Pulse;
use crate::sql::{Bind, Row};
use crate::{Engine, StoreError, Vault};

/// The insides of an open store.
pub(crate) struct Core {
    pub(crate) engine: Engine,
    /// The writer's connection. In memory it is the only one, for reads too.
    pub(crate) writers: Arc<Pool>,
    pub(crate) readers: Arc<Pool>,
    pub(crate) clock: FleetClock,
    pub(crate) pulse: Pulse,
    pub(crate) vault: Vault,
    pub(crate) fleet_id: FleetId,
    pub(crate) replica_id: ReplicaId,
    /// Counts the times that new events may have come; see `EventWatch`.
    pub(crate) wakes: watch::Sender<u64>,
    /// Cancelled when the store is closed or its last handle is dropped.
    pub(crate) stop: CancellationToken,
    /// Writes that failed since the start, by what they would have changed.
    pub(crate) write_failures: Mutex<BTreeMap<&'static str, u64>>,
    /// Keeps other processes away from a SQLite file until the store is closed.
    pub(crate) lock: Mutex<Option<FileLock>>,
}

impl Core {
    /// Runs a statement that only reads. Once more, on a new connection, if the
    /// one that it was given turns out to be dead.
    pub(crate) async fn read(
        &self,
        step: &'static str,
        sql: impl SqlSafeStr + Send,
        binds: Vec<Bind>,
    ) -> Result<Vec<Row>, StoreError> {
        let sql = sql.into_sql_str();
        let failed = |error| StoreError::from_sqlx(step, error);
        let mut conn = self.readers.acquire().await.map_err(failed)?;
        match conn.fetch(sql.clone(), binds.clone()).await {
            Err(error) if is_lost(&error) => {}
            result => return result.map_err(failed),
        }
        drop(conn);
        self.readers.clear();
        let mut conn = self.readers.acquire().await.map_err(failed)?;
        conn.fetch(sql, binds).await.map_err(failed)
    }

    pub(crate) fn count_write_failure(&self, entity: &'static str) {
        *self
            .write_failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(entity)
            .or_default() += 1;
    }

    /// Tells watchers that there may be new events.
    pub(crate) fn wake_watchers(&self) {
        self.wakes.send_modify(|count| *count += 1);
    }
}
