//! The event stream: what happened to environments, in the order of commits.
//!
//! Places are given out under a lock that is held to the commit, so a reader
//! that has seen place n has seen every place below. Subscribers keep the place
//! of the last event that they were told and read on from there when woken.

use fuse_model::{EnvironmentEvent, EnvironmentId, EventId, GuestReport, State};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::sql::{Row, binds, to_json};
use crate::tx::Tx;
use crate::writer::{Applied, Write};
use crate::{Store, StoreError};

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, environment_id, state, url, error, step, at FROM events ",
            $rest
        )
    };
}

/// Fires when new events, or more of a startup script's output, have been committed, by
/// any replica.
#[derive(Debug, Clone)]
pub struct EventWatch {
    wakes: watch::Receiver<u64>,
    stop: CancellationToken,
}

impl EventWatch {
    /// Waits until there may be events that were not there at the last call (or
    /// when the watch was made). May fire without any. `false` once the store is
    /// closed.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn changed(&mut self) -> bool {
        tokio::select! {
            biased;
            changed = self.wakes.changed() => changed.is_ok(),
            () = self.stop.cancelled() => false,
        }
    }
}

impl Store {
    /// A watch on new events.
    pub fn event_watch(&self) -> EventWatch {
        EventWatch {
            wakes: self.core().wakes.subscribe(),
            stop: self.core().stop.clone(),
        }
    }

    /// The sequence of the newest event or audit entry; 0 before the first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_head(&self) -> Result<i64, StoreError> {
        let sql = "SELECT value FROM event_clock WHERE id = 1";
        let rows = self.read("read the event clock", sql, Vec::new()).await?;
        rows.first()
            .map_or(Ok(0), |row| row.columns("event_clock").int("value"))
    }

    /// Events after `sequence`, oldest first, at most `limit`: the whole fleet's.
    /// An event seen here is never followed by one with a lower sequence.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_list_after(
        &self,
        sequence: i64,
        limit: u32,
    ) -> Result<Vec<EnvironmentEvent>, StoreError> {
        let sql = select!("WHERE seq > $1 ORDER BY seq LIMIT $2");
        let rows = self
            .read("list events", sql, binds![sequence, limit])
            .await?;
        rows.iter().map(from_row).collect()
    }

    /// One environment's events after `sequence`, oldest first, at most `limit`.
    /// They stay readable for a while after the environment is gone.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_list_of(
        &self,
        id: &EnvironmentId,
        sequence: i64,
        limit: u32,
    ) -> Result<Vec<EnvironmentEvent>, StoreError> {
        let sql = select!("WHERE environment_id = $1 AND seq > $2 ORDER BY seq LIMIT $3");
        let values = binds![id.as_str(), sequence, limit];
        let rows = self
            .read("list an environment's events", sql, values)
            .await?;
        rows.iter().map(from_row).collect()
    }

    /// The event of this id, if it is known: resolves a `Last-Event-ID`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_get(&self, id: EventId) -> Result<Option<EnvironmentEvent>, StoreError> {
        let sql = select!("WHERE seq = $1");
        let rows = self
            .read("read an event", sql, binds![id.sequence()])
            .await?;
        let event = rows.first().map(from_row).transpose()?;
        Ok(event.filter(|event| event.id == id))
    }

    /// Adds reports out of a guest to the stream of an environment. One that
    /// is being torn down, or gone, gets none: nothing follows its last event.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_add_reports(
        &self,
        id: &EnvironmentId,
        reports: Vec<GuestReport>,
    ) -> Result<(), StoreError> {
        let id = id.clone();
        self.write(AddReports { id, reports }).await
    }

    /// Forgets the events of environments that ended before `ended_before`, of at
    /// most `limit` of them. Answers how many events were forgotten.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_prune(
        &self,
        ended_before: Timestamp,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let prune = Prune {
            ended_before,
            limit,
        };
        self.write(prune).await
    }
}

struct AddReports {
    id: EnvironmentId,
    reports: Vec<GuestReport>,
}

impl Write for AddReports {
    type Out = ();
    const ENTITY: &'static str = "event";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<()>, StoreError> {
        // The update takes the row's lock: a removal is before or after this, not between.
        let sql = "UPDATE environments SET activity_at = activity_at \
             WHERE id = $1 AND state = $2 RETURNING id";
        let state = State::Provisioning;
        let values = binds![self.id.as_str(), state.as_str()];
        let found = tx
            .fetch("find the environment of a report", sql, values)
            .await?;
        if !found.is_empty() {
            for report in &self.reports {
                // The column has its name from the first kind of report that there was.
                tx.effects
                    .step_event(&self.id, state, to_json("events", "step", report)?);
            }
        }
        Ok(Applied::Keep(()))
    }
}

struct Prune {
    ended_before: Timestamp,
    limit: u32,
}

impl Write for Prune {
    type Out = u64;
    const ENTITY: &'static str = "event";

    async fn apply(&self, tx: &mut Tx<'_>) -> Result<Applied<u64>, StoreError> {
        // An id may be in use again: only what led up to the end goes. All of it goes
        // at once: without its end, nothing would ever find the rest.
        let sql = "DELETE FROM events WHERE seq IN (\
             SELECT e.seq FROM (SELECT environment_id, seq FROM events \
                 WHERE state IN ('destroyed', 'failed') AND at < $1 ORDER BY at LIMIT $2) t \
             JOIN events e ON e.environment_id = t.environment_id AND e.seq <= t.seq)";
        let values = binds![self.ended_before, self.limit];
        tx.execute("prune events", sql, values)
            .await
            .map(Applied::Keep)
    }
}

fn from_row(row: &Row) -> Result<EnvironmentEvent, StoreError> {
    let mut columns = row.columns("events");
    Ok(EnvironmentEvent {
        id: columns.parsed("id")?,
        environment_id: EnvironmentId::new(columns.text("environment_id")?),
        state: columns.parsed("state")?,
        url: columns.text("url")?,
        error: columns.text("error")?,
        report: match columns.text("step")?.as_str() {
            "" => None,
            text => Some(serde_json::from_str(text).map_err(|e| StoreError::Corrupt {
                table: "events",
                column: "step",
                reason: e.to_string(),
            })?),
        },
        at: columns.time("at")?,
    })
}
