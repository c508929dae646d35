//! The handle of an open store: opening, identity, closing. What can be done
//! with it is in one file per resource.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use fuse_model::{FleetId, ReplicaId};
use jiff::Timestamp;
use sqlx::SqlSafeStr;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::FleetClock;
use crate::connect::{FileLock, Target};
use crate::core::Core;
use crate::pool::Pool;
use crate::pulse::Pulse;
use crate::sql::{Bind, Row};
use crate::writer::{WriteMany, WriteQueue};
use crate::{Engine, OpenError, StoreError, Vault, listen, migrate, presence};

/// Connections that read. Reads are short; more than a few per core only queue
/// up inside the database instead of here.
const READERS_FILE: usize = 4;
const READERS_POSTGRES: usize = 8;

/// An open store; clones share it. Close it with [`Store::close`]: dropping the
/// last handle abandons writes that nobody waits for.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<Core>,
    queue: WriteQueue,
    tasks: TaskTracker,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.core.stop.cancel();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("engine", &self.inner.core.engine)
            .field("replica", &self.inner.core.replica_id)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the store that `url` names (`postgres://…`, `sqlite://path`, `None`
    /// for one in memory), brings its schema up to date and joins the fleet.
    ///
    /// # Errors
    /// A bad URL, no database, a file in use by another process, or a failed
    /// migration; the text says what to do.
    pub async fn open(url: Option<&str>, vault: Vault) -> Result<Self, OpenError> {
        let target = Target::parse(url)?;
        let engine = target.engine();
        let lock = match &target {
            Target::File(path) => Some(FileLock::take(path)?),
            Target::Memory | Target::Postgres(_) => None,
        };
        let mut conn = target
            .writer()
            .connect()
            .await
            .map_err(OpenError::Connect)?;
        migrate::run(&mut conn, engine).await?;
        let replica_id = ReplicaId::random();
        let (clock, pulse) = (FleetClock::default(), Pulse::default());
        let fleet_id = presence::join(&mut conn, engine, &replica_id, (&clock, &pulse)).await?;

        let writers = Arc::new(Pool::new(target.writer(), 1));
        writers.put(conn);
        let readers = match engine {
            Engine::Memory => Arc::clone(&writers),
            Engine::File => Arc::new(Pool::new(target.reader(), READERS_FILE)),
            Engine::Postgres => Arc::new(Pool::new(target.reader(), READERS_POSTGRES)),
        };
        let core = Arc::new(Core {
            engine,
            writers,
            readers,
            clock,
            pulse,
            vault,
            fleet_id,
            replica_id,
            wakes: watch::Sender::new(0),
            stop: CancellationToken::new(),
            write_failures: Mutex::default(),
            lock: Mutex::new(lock),
        });
        Ok(Self::start(core, target))
    }

    fn start(core: Arc<Core>, target: Target) -> Self {
        let tasks = TaskTracker::new();
        let (queue, writer) = WriteQueue::new(Arc::clone(&core));
        tasks.spawn(writer.run());
        if let Target::Postgres(options) = target {
            tasks.spawn(presence::beat(Arc::clone(&core)));
            tasks.spawn(listen::run(Arc::clone(&core), *options));
        }
        tasks.close();
        let inner = Inner { core, queue, tasks };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Where the state lives.
    pub fn engine(&self) -> Engine {
        self.inner.core.engine
    }

    /// The fleet's identity: the owner tag of every VM.
    pub fn fleet_id(&self) -> &FleetId {
        &self.inner.core.fleet_id
    }

    /// This process's identity among the orchestrators of the fleet.
    pub fn replica_id(&self) -> &ReplicaId {
        &self.inner.core.replica_id
    }

    /// The keys in use.
    pub fn vault(&self) -> &Vault {
        &self.inner.core.vault
    }

    /// The fleet's clock: the database's on Postgres, so that replicas agree.
    pub fn now(&self) -> Timestamp {
        self.inner.core.clock.now()
    }

    /// The fleet's clock without what it was set forward in the last day, by which things are
    /// forgotten for their age. Never later than [`Store::now`].
    pub fn settled_now(&self) -> Timestamp {
        self.inner.core.clock.settled()
    }

    /// Whether the database answers a read.
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.read("answer", "SELECT 1", Vec::new()).await.map(drop)
    }

    /// How many writes failed since the start, by what they would have changed.
    pub fn write_failures(&self) -> BTreeMap<&'static str, u64> {
        self.inner
            .core
            .write_failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Finishes the writes under way, gives up this replica's leases and closes
    /// all connections. Later calls fail with [`StoreError::Closed`].
    pub async fn close(&self) {
        self.inner.core.stop.cancel();
        self.inner.tasks.wait().await;
        presence::leave(&self.inner.core).await;
        self.inner.core.readers.close().await;
        self.inner.core.writers.close().await;
        drop(
            self.inner
                .core
                .lock
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    pub(crate) fn core(&self) -> &Core {
        &self.inner.core
    }

    pub(crate) async fn read(
        &self,
        step: &'static str,
        sql: impl SqlSafeStr + Send,
        binds: Vec<Bind>,
    ) -> Result<Vec<Row>, StoreError> {
        self.inner.core.read(step, sql, binds).await
    }

    pub(crate) async fn write<W: WriteMany>(&self, write: W) -> Result<W::Out, StoreError> {
        self.inner.queue.submit(write).await
    }
}
