//! This process among the orchestrators of the fleet.
//!
//! On PostgreSQL a replica beats every 5 s and counts as dead after 20 s
//! without; its operations and leases may then be taken over. On SQLite the
//! file lock proves that there is no other replica: whoever opens the file
//! takes over at once, and nobody beats.

use std::sync::Arc;
use std::time::Duration;

use fuse_model::{FleetId, ReplicaId, to_micros};
use jiff::Timestamp;

use crate::clock::FleetClock;
use crate::core::Core;
use crate::pulse::Pulse;
use crate::sql::{Conn, Row, binds};
use crate::{Engine, Store, StoreError};

pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long a replica is believed to live without a beat.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(20);
/// How long the row of a dead replica is kept, for people who look.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// `seen_at` of a replica that needs no beat.
const FOREVER: i64 = i64::MAX;

const BEAT: &str = "INSERT INTO replicas (id, started_at, seen_at) \
     VALUES ($1, $2, CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)) \
     ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at RETURNING seen_at";

/// The condition under which replica `id` is alive; `$dead` is what
/// [`crate::pulse::Pulse::alive_since`] answers.
macro_rules! is_alive {
    ($id:literal, $dead:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM replicas WHERE id = ",
            $id,
            " AND seen_at > ",
            $dead,
            ")"
        )
    };
}
pub(crate) use is_alive;

/// Joins the fleet and answers its id, which the first one makes up.
pub(crate) async fn join(
    conn: &mut Conn,
    engine: Engine,
    replica: &ReplicaId,
    (clock, pulse): (&FleetClock, &Pulse),
) -> Result<FleetId, StoreError> {
    let failed = |error| StoreError::from_sqlx("join the fleet", error);
    if engine == Engine::Postgres {
        let asked = fuse_model::now();
        let rows = conn
            .fetch(BEAT, binds![replica.as_str(), asked])
            .await
            .map_err(failed)?;
        set_clock((clock, pulse), asked, &rows)?;
        let long_ago = clock.now().as_microsecond() - to_micros(FORGOTTEN_AFTER);
        let sql = "DELETE FROM replicas WHERE seen_at < $1";
        conn.execute(sql, binds![long_ago]).await.map_err(failed)?;
    } else {
        conn.execute("DELETE FROM replicas", Vec::new())
            .await
            .map_err(failed)?;
        let sql = "INSERT INTO replicas (id, started_at, seen_at) VALUES ($1, $2, $3)";
        let values = binds![replica.as_str(), clock.now(), FOREVER];
        conn.execute(sql, values).await.map_err(failed)?;
    }
    fleet_id(conn, clock.now()).await
}

async fn fleet_id(conn: &mut Conn, now: Timestamp) -> Result<FleetId, StoreError> {
    let failed = |error| StoreError::from_sqlx("read the fleet's id", error);
    let select = "SELECT fleet_id FROM fleet WHERE id = 1";
    let mut rows = conn.fetch(select, Vec::new()).await.map_err(failed)?;
    if rows.is_empty() {
        let insert = "INSERT INTO fleet (id, fleet_id, created_at) VALUES (1, $1, $2) \
             ON CONFLICT (id) DO NOTHING";
        let fresh = FleetId::random();
        conn.execute(insert, binds![fresh.as_str(), now])
            .await
            .map_err(failed)?;
        rows = conn.fetch(select, Vec::new()).await.map_err(failed)?;
    }
    let row = rows
        .first()
        .ok_or_else(|| failed(sqlx::Error::RowNotFound))?;
    Ok(FleetId::new(row.columns("fleet").text("fleet_id")?))
}

fn set_clock(
    (clock, pulse): (&FleetClock, &Pulse),
    asked: Timestamp,
    rows: &[Row],
) -> Result<(), StoreError> {
    if let Some(row) = rows.first() {
        let at = row.columns("replicas").time("seen_at")?;
        clock.set(asked, at);
        pulse.beaten(at);
    }
    Ok(())
}

impl Store {
    /// The orchestrators of the fleet that live, this one among them.
    ///
    /// # Errors
    /// The database fails.
    pub async fn replicas_alive(&self) -> Result<Vec<ReplicaId>, StoreError> {
        let sql = "SELECT id FROM replicas WHERE seen_at > $1 ORDER BY id";
        let since = self.core().pulse.alive_since(self.now());
        let rows = self.read("list replicas", sql, binds![since]).await?;
        rows.iter()
            .map(|row| Ok(ReplicaId::new(row.columns("replicas").text("id")?)))
            .collect()
    }
}

/// Beats until the store is closed.
pub(crate) async fn beat(core: Arc<Core>) {
    let mut ticks = tokio::time::interval(HEARTBEAT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick is immediate, and joining was the first beat.
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = core.stop.cancelled() => return,
        }
        let asked = fuse_model::now();
        let beat = core
            .read("beat", BEAT, binds![core.replica_id.as_str(), asked])
            .await;
        if let Err(error) =
            beat.and_then(|rows| set_clock((&core.clock, &core.pulse), asked, &rows))
        {
            tracing::warn!(%error, "this replica could not beat; others will take it for dead");
        }
    }
}

/// Leaves the fleet: what this replica held is free at once.
pub(crate) async fn leave(core: &Core) {
    let sql = "DELETE FROM replicas WHERE id = $1";
    let result = match core.writers.acquire().await {
        Ok(mut conn) => conn
            .execute(sql, binds![core.replica_id.as_str()])
            .await
            .map(drop),
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        tracing::warn!(%error, "this replica could not sign off; it counts as alive a while longer");
    }
}
