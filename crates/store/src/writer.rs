//! The one writer of a store: every change goes through its queue.
//!
//! ```text
//!  callers -> queue -> batch: BEGIN, each write, clock, events, audit, COMMIT -> replies
//! ```
//!
//! While one batch is being committed the next ones queue up and share a
//! transaction and its flush to disk. That is what makes a single host row, the
//! event clock and an fsync of a millisecond cheap: within a process nothing
//! ever waits for a row lock, and between processes a lock is held for one
//! short batch.
//!
//! Invariants:
//! - A caller is answered after the commit of its write, never before.
//! - Writes are independent. One that cannot keep what it has written
//!   ([`Applied::Undo`]), or that fails, is run again in a transaction of its
//!   own, and so are its neighbours.
//! - Event places are taken last, under the clock's row lock, so the order of
//!   events is the order of commits, across all replicas.
//! - After a lost answer to `COMMIT` nobody knows; callers are told so.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use fuse_model::{AuditEntry, EnvironmentId, EventId, ReplicaId, State};
use jiff::Timestamp;
use sqlx::{AssertSqlSafe, SqlSafeStr};
use tokio::sync::{mpsc, oneshot};

use crate::core::Core;
use crate::pool::Pooled;
use crate::sql::{Bind, Row, binds};
use crate::{Engine, StoreError};

/// Most writes that share a transaction: long enough to amortise a flush, short
/// enough that the locks of a batch are no burden to other replicas.
const MAX_BATCH: usize = 64;
/// Most writes that wait; past that callers are refused.
const QUEUE: usize = 4096;
/// Most rows of one multi-row insert. Lengths are powers of two, so that few
/// different statements are prepared.
const MAX_ROWS: usize = 32;
/// How often a write is tried in a transaction of its own when other replicas
/// get in its way.
const MAX_ATTEMPTS: u32 = 4;

/// What a write decided.
#[derive(Debug)]
pub(crate) enum Applied<T> {
    /// Commit and answer this.
    Keep(T),
    /// Roll back what was written, and answer this.
    Undo(T),
}

/// A change: rows to write and what to answer. It may run more than once, each
/// time in a transaction in which nothing of the earlier runs is left.
pub(crate) trait Write: Send + Sync + 'static {
    /// The answer.
    type Out: Send + 'static;

    /// Runs the statements.
    fn apply(
        &self,
        tx: &mut Tx<'_>,
    ) -> impl Future<Output = Result<Applied<Self::Out>, StoreError>> + Send;
}

/// The transaction of a batch, as a write sees it.
pub(crate) struct Tx<'w> {
    conn: Pooled<'w>,
    /// The time of the batch.
    pub(crate) now: Timestamp,
    /// This process.
    pub(crate) replica: &'w ReplicaId,
    events: Vec<NewEvent>,
    audit: Vec<AuditEntry>,
}

/// An event that has no place yet.
struct NewEvent {
    environment_id: EnvironmentId,
    state: State,
    url: String,
    error: String,
}

impl Tx<'_> {
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

    /// Adds an event, written at the end of the batch.
    pub(crate) fn event(&mut self, id: &EnvironmentId, state: State, url: &str, error: &str) {
        self.events.push(NewEvent {
            environment_id: id.clone(),
            state,
            url: url.to_owned(),
            error: error.to_owned(),
        });
    }

    /// Adds audit entries, written at the end of the batch.
    pub(crate) fn audit(&mut self, entries: &[AuditEntry]) {
        self.audit.extend_from_slice(entries);
    }

    /// Gives the events and entries of the batch their places and writes them.
    /// Answers whether there were events.
    async fn flush(&mut self, engine: Engine) -> Result<bool, StoreError> {
        let (events, audit) = (
            std::mem::take(&mut self.events),
            std::mem::take(&mut self.audit),
        );
        let count = i64::try_from(events.len() + audit.len()).unwrap_or(i64::MAX);
        if count == 0 {
            return Ok(false);
        }
        let rows = self
            .fetch("advance the event clock", clock_sql(engine), binds![count])
            .await?;
        let Some(row) = rows.first() else {
            return Err(StoreError::Corrupt {
                table: "event_clock",
                column: "value",
                reason: "the row is missing".to_owned(),
            });
        };
        let first = row.columns("event_clock").int("value")? - count + 1;
        let now = self.now;
        let had_events = !events.is_empty();
        let mut places = first..;
        let rows = events.into_iter().zip(&mut places).map(|(event, seq)| {
            binds![
                seq,
                EventId::at(seq).to_string(),
                event.environment_id.as_str(),
                event.state.as_str(),
                event.url,
                event.error,
                now
            ]
        });
        let into = "INSERT INTO events (seq, id, environment_id, state, url, error, at)";
        self.insert_rows("insert events", into, rows.collect())
            .await?;
        let rows = audit.iter().zip(places).map(|(entry, seq)| {
            binds![
                seq,
                entry.kind.entity().as_str(),
                entry.entity_id.as_str(),
                entry.kind.as_str(),
                serde_json::Value::Object(entry.payload.clone()).to_string(),
                now
            ]
        });
        let into = "INSERT INTO audit_events (seq, entity_type, entity_id, type, payload, at)";
        self.insert_rows("insert audit entries", into, rows.collect())
            .await?;
        Ok(had_events)
    }

    async fn insert_rows(
        &mut self,
        step: &'static str,
        into: &'static str,
        rows: Vec<Vec<Bind>>,
    ) -> Result<(), StoreError> {
        let mut rows = rows.into_iter();
        while rows.len() > 0 {
            let take = (1usize << rows.len().ilog2()).min(MAX_ROWS);
            let chunk: Vec<Vec<Bind>> = rows.by_ref().take(take).collect();
            let sql = values_sql(into, chunk.len(), chunk.first().map_or(0, Vec::len));
            let binds = chunk.into_iter().flatten().collect();
            self.execute(step, AssertSqlSafe(sql), binds).await?;
        }
        Ok(())
    }
}

/// `INSERT INTO t (…) VALUES ($1, $2), ($3, $4)`
fn values_sql(into: &str, rows: usize, columns: usize) -> String {
    use std::fmt::Write as _;

    let mut sql = format!("{into} VALUES ");
    for at in 0..rows * columns {
        let before = match at {
            0 => "(",
            _ if at % columns == 0 => "), (",
            _ => ", ",
        };
        // Writing to a String cannot fail.
        let _infallible = write!(sql, "{before}${}", at + 1);
    }
    sql.push(')');
    sql
}

/// On PostgreSQL the statement also wakes the other replicas, at commit.
const fn clock_sql(engine: Engine) -> &'static str {
    match engine {
        Engine::Memory | Engine::File => {
            "UPDATE event_clock SET value = value + $1 WHERE id = 1 RETURNING value"
        }
        Engine::Postgres => {
            "UPDATE event_clock SET value = value + $1 WHERE id = 1 \
             RETURNING value, pg_notify('fuse_events', '')"
        }
    }
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A queued write, whatever it answers.
trait Job: Send {
    /// Applies the write and remembers its answer. `true`: it must be undone.
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Answers the caller: what was remembered, or the error.
    fn finish(self: Box<Self>, outcome: Result<(), StoreError>);
}

struct Queued<W: Write> {
    write: W,
    out: Option<W::Out>,
    reply: oneshot::Sender<Result<W::Out, StoreError>>,
}

impl<W: Write> Job for Queued<W> {
    fn run<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let (out, undo) = match self.write.apply(tx).await? {
                Applied::Keep(out) => (out, false),
                Applied::Undo(out) => (out, true),
            };
            self.out = Some(out);
            Ok(undo)
        })
    }

    fn finish(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { out, reply, .. } = *self;
        let answer = outcome.and_then(|()| out.ok_or(StoreError::Closed));
        if reply.send(answer).is_err() {
            tracing::debug!("the caller of a write left before its answer");
        }
    }
}

/// The callers' end of the queue.
#[derive(Clone)]
pub(crate) struct WriteQueue {
    jobs: mpsc::Sender<Box<dyn Job>>,
}

impl WriteQueue {
    /// A queue and the writer that serves it.
    pub(crate) fn new(core: Arc<Core>) -> (Self, Writer) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let writer = Writer {
            core,
            jobs: receiver,
        };
        (Self { jobs: sender }, writer)
    }

    /// Queues a write and waits until it is committed. The write happens even
    /// if the caller stops waiting.
    pub(crate) async fn submit<W: Write>(&self, write: W) -> Result<W::Out, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Queued {
            write,
            out: None,
            reply,
        });
        self.jobs.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => StoreError::Closed,
        })?;
        answer.await.unwrap_or(Err(StoreError::Closed))
    }
}

/// Serves the queue until it is closed and empty.
pub(crate) struct Writer {
    core: Arc<Core>,
    jobs: mpsc::Receiver<Box<dyn Job>>,
}

/// How a batch ended.
enum Ended {
    /// All of it is stored.
    Committed,
    /// The only write of the batch wanted nothing kept.
    RolledBack,
    /// One of several writes must have a transaction of its own.
    Undone,
    /// Nothing is stored, as far as anybody knows.
    Failed(StoreError),
}

impl Writer {
    /// Runs until the store is closed, then answers what is still queued.
    pub(crate) async fn run(mut self) {
        let stop = self.core.stop.clone();
        let mut batch = Vec::with_capacity(MAX_BATCH);
        loop {
            let received = tokio::select! {
                received = self.jobs.recv_many(&mut batch, MAX_BATCH) => received,
                () = stop.cancelled(), if !self.jobs.is_closed() => {
                    self.jobs.close();
                    continue;
                }
            };
            if received == 0 {
                break;
            }
            self.run_batch(std::mem::take(&mut batch)).await;
        }
    }

    /// Runs the jobs in one transaction, or one by one if that does not do.
    async fn run_batch(&self, mut jobs: Vec<Box<dyn Job>>) {
        match self.attempt(&mut jobs).await {
            Ended::Committed | Ended::RolledBack => finish(jobs, &Ok(())),
            // The database is gone: it would be for each of them.
            Ended::Failed(error @ StoreError::Unavailable { .. }) if !error.is_contention() => {
                finish(jobs, &Err(error));
            }
            Ended::Undone | Ended::Failed(_) => {
                for job in jobs {
                    self.run_alone(job).await;
                }
            }
        }
    }

    async fn run_alone(&self, job: Box<dyn Job>) {
        let mut jobs = vec![job];
        let mut attempt = 1;
        let outcome = loop {
            match self.attempt(&mut jobs).await {
                Ended::Committed | Ended::RolledBack | Ended::Undone => break Ok(()),
                Ended::Failed(error) if error.is_contention() && attempt < MAX_ATTEMPTS => {
                    attempt += 1;
                }
                Ended::Failed(error) => break Err(error),
            }
        };
        finish(jobs, &outcome);
    }

    async fn attempt(&self, jobs: &mut [Box<dyn Job>]) -> Ended {
        let conn = match self.begin().await {
            Ok(conn) => conn,
            Err(error) => return Ended::Failed(StoreError::from_sqlx("begin", error)),
        };
        let mut tx = Tx {
            conn,
            now: self.core.clock.now(),
            replica: &self.core.replica_id,
            events: Vec::new(),
            audit: Vec::new(),
        };
        let ended = match run_all(&mut tx, jobs).await {
            Ok(()) => self.commit(&mut tx).await,
            Err(ended) => ended,
        };
        if !matches!(ended, Ended::Committed) && tx.conn.batch("ROLLBACK").await.is_err() {
            tx.conn.discard();
        }
        ended
    }

    /// A connection with an open transaction. An idle connection may lead to a
    /// server that has gone since; nothing is written yet, so try a new one.
    async fn begin(&self) -> Result<Pooled<'_>, sqlx::Error> {
        let begin = match self.core.engine {
            Engine::Memory | Engine::File => "BEGIN IMMEDIATE",
            Engine::Postgres => "BEGIN",
        };
        let mut conn = self.core.writers.acquire().await?;
        if conn.batch(begin).await.is_err() {
            conn.discard();
            self.core.writers.clear();
            conn = self.core.writers.acquire().await?;
            conn.batch(begin).await?;
        }
        Ok(conn)
    }

    async fn commit(&self, tx: &mut Tx<'_>) -> Ended {
        let had_events = match tx.flush(self.core.engine).await {
            Ok(had_events) => had_events,
            Err(error) => return Ended::Failed(error),
        };
        if let Err(error) = tx.conn.batch("COMMIT").await {
            return Ended::Failed(StoreError::from_commit(error));
        }
        if had_events {
            self.core.wake_watchers();
        }
        Ended::Committed
    }
}

async fn run_all(tx: &mut Tx<'_>, jobs: &mut [Box<dyn Job>]) -> Result<(), Ended> {
    let alone = jobs.len() == 1;
    for job in jobs {
        match job.run(tx).await {
            Ok(false) => {}
            Ok(true) if alone => return Err(Ended::RolledBack),
            Ok(true) => return Err(Ended::Undone),
            Err(error) => return Err(Ended::Failed(error)),
        }
    }
    Ok(())
}

fn finish(jobs: Vec<Box<dyn Job>>, outcome: &Result<(), StoreError>) {
    for job in jobs {
        job.finish(outcome.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multi_row_inserts_number_their_placeholders() {
        assert_eq!(
            values_sql("INSERT INTO t (a)", 1, 1),
            "INSERT INTO t (a) VALUES ($1)"
        );
        assert_eq!(values_sql("I", 2, 3), "I VALUES ($1, $2, $3), ($4, $5, $6)");
    }
}
