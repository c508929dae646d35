//! The one writer of a store: every change goes through its queue.
//!
//! ```text
//!  callers -> queue -> batch: BEGIN, each write, what they share, COMMIT -> replies
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
//! - What writes share (host rows, the event clock) is written once per batch,
//!   last; see `effects`.
//! - After a lost answer to `COMMIT` nobody knows; callers are told so.

use std::any::{Any, TypeId};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::core::Core;
use crate::effects::Flushed;
use crate::pool::Pooled;
use crate::tx::Tx;
use crate::{Engine, StoreError};

/// Most writes that share a transaction: long enough to amortise a flush, short
/// enough that the locks of a batch are no burden to other replicas.
const MAX_BATCH: usize = 64;
/// Most writes that wait; past that callers are refused.
const QUEUE: usize = 4096;
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
pub(crate) trait Write: Sized + Send + Sync + 'static {
    /// The answer.
    type Out: Send + 'static;
    /// What it changes, for the count of failures.
    const ENTITY: &'static str;

    /// Runs the statements.
    fn apply(
        &self,
        tx: &mut Tx<'_>,
    ) -> impl Future<Output = Result<Applied<Self::Out>, StoreError>> + Send;
}

/// A change of which many come at once: those of a batch share their statements.
pub(crate) trait WriteMany: Sized + Send + Sync + 'static {
    /// The answer to each.
    type Out: Send + 'static;
    /// What it changes, for the count of failures.
    const ENTITY: &'static str;

    /// Runs the statements for all of `writes` and answers in their order.
    fn apply_all(
        writes: &[&Self],
        tx: &mut Tx<'_>,
    ) -> impl Future<Output = Result<Vec<Applied<Self::Out>>, StoreError>> + Send;
}

impl<W: Write> WriteMany for W {
    type Out = W::Out;
    const ENTITY: &'static str = <W as Write>::ENTITY;

    async fn apply_all(
        writes: &[&Self],
        tx: &mut Tx<'_>,
    ) -> Result<Vec<Applied<Self::Out>>, StoreError> {
        let mut answers = Vec::with_capacity(writes.len());
        for write in writes {
            answers.push(write.apply(tx).await?);
        }
        Ok(answers)
    }
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Applies jobs of one kind and remembers their answers. `true`: one of them
/// must be undone.
type Runner =
    for<'a> fn(&'a mut [Box<dyn Job>], &'a mut Tx<'_>) -> BoxFuture<'a, Result<bool, StoreError>>;

/// A queued write, whatever it answers.
trait Job: Any + Send {
    /// Jobs of the same kind run together.
    fn kind(&self) -> TypeId;

    /// Runs jobs of this kind.
    fn runner(&self) -> Runner;

    /// What it changes.
    fn entity(&self) -> &'static str;

    /// Answers the caller: what was remembered, or the error.
    fn finish(self: Box<Self>, outcome: Result<(), StoreError>);
}

struct Queued<W: WriteMany> {
    write: W,
    out: Option<W::Out>,
    reply: oneshot::Sender<Result<W::Out, StoreError>>,
}

impl<W: WriteMany> Job for Queued<W> {
    fn kind(&self) -> TypeId {
        TypeId::of::<W>()
    }

    fn runner(&self) -> Runner {
        |jobs, tx| Box::pin(run_kind::<W>(jobs, tx))
    }

    fn entity(&self) -> &'static str {
        W::ENTITY
    }

    fn finish(self: Box<Self>, outcome: Result<(), StoreError>) {
        let Self { out, reply, .. } = *self;
        let answer = outcome.and_then(|()| out.ok_or(StoreError::Closed));
        if reply.send(answer).is_err() {
            tracing::debug!("the caller of a write left before its answer");
        }
    }
}

fn of_kind<W: WriteMany>(job: &mut Box<dyn Job>) -> Option<&mut Queued<W>> {
    let job: &mut dyn Any = job.as_mut();
    job.downcast_mut()
}

async fn run_kind<W: WriteMany>(
    jobs: &mut [Box<dyn Job>],
    tx: &mut Tx<'_>,
) -> Result<bool, StoreError> {
    let mut queued: Vec<&mut Queued<W>> = jobs.iter_mut().filter_map(of_kind).collect();
    let writes: Vec<&W> = queued.iter().map(|job| &job.write).collect();
    let answers = W::apply_all(&writes, tx).await?;
    let mut undo = false;
    for (job, answer) in queued.iter_mut().zip(answers) {
        job.out = Some(match answer {
            Applied::Keep(out) => out,
            Applied::Undo(out) => {
                undo = true;
                out
            }
        });
    }
    Ok(undo)
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
    pub(crate) async fn submit<W: WriteMany>(&self, write: W) -> Result<W::Out, StoreError> {
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
            Ended::Committed | Ended::RolledBack => self.finish(jobs, &Ok(())),
            // The database is gone: it would be for each of them.
            Ended::Failed(error @ StoreError::Unavailable { .. }) if !error.is_contention() => {
                self.finish(jobs, &Err(error));
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
                Ended::Committed | Ended::RolledBack => break Ok(()),
                // Only batches of several writes charge on trust and are undone.
                Ended::Undone => break Err(StoreError::Overloaded),
                Ended::Failed(error) if error.is_contention() && attempt < MAX_ATTEMPTS => {
                    attempt += 1;
                }
                Ended::Failed(error) => break Err(error),
            }
        };
        self.finish(jobs, &outcome);
    }

    async fn attempt(&self, jobs: &mut [Box<dyn Job>]) -> Ended {
        let conn = match self.begin().await {
            Ok(conn) => conn,
            Err(error) => return Ended::Failed(StoreError::from_sqlx("begin", error)),
        };
        let mut tx = Tx::new(conn, &self.core, jobs.len() == 1);
        let ended = match run_all(&mut tx, jobs).await {
            Ok(()) => self.commit(&mut tx).await,
            Err(ended) => ended,
        };
        if !matches!(ended, Ended::Committed) {
            tx.roll_back().await;
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

    fn finish(&self, jobs: Vec<Box<dyn Job>>, outcome: &Result<(), StoreError>) {
        for job in jobs {
            if outcome.is_err() {
                self.core.count_write_failure(job.entity());
            }
            job.finish(outcome.clone());
        }
    }

    async fn commit(&self, tx: &mut Tx<'_>) -> Ended {
        let is_news = match tx.flush(self.core.engine).await {
            Ok(Flushed::Written { is_news }) => is_news,
            Ok(Flushed::NoCapacity) => return Ended::Undone,
            Err(error) => return Ended::Failed(error),
        };
        if let Err(error) = tx.commit().await {
            return Ended::Failed(error);
        }
        if is_news {
            self.core.wake_watchers();
        }
        Ended::Committed
    }
}

async fn run_all(tx: &mut Tx<'_>, jobs: &mut [Box<dyn Job>]) -> Result<(), Ended> {
    // Stable, and the same in every replica of one build: kinds take their locks
    // in one order.
    jobs.sort_by_key(|job| job.kind());
    for kind in jobs.chunk_by_mut(|a, b| a.kind() == b.kind()) {
        let Some(runner) = kind.first().map(|job| job.runner()) else {
            continue;
        };
        match runner(kind, tx).await {
            Ok(false) => {}
            Ok(true) if tx.alone => return Err(Ended::RolledBack),
            Ok(true) => return Err(Ended::Undone),
            Err(error) => return Err(Ended::Failed(error)),
        }
    }
    Ok(())
}
