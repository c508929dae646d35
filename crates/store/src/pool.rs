//! A bounded set of connections.
//!
//! Unlike sqlx's pool it does not ask a server whether it is there each time a
//! connection is handed back: a statement that fails for want of a server says
//! so itself. A PostgreSQL connection that was dropped in the middle of a
//! statement is closed, not reused; SQLite finishes the statement on its own
//! thread, and its only connection *is* the database when that is in memory.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::SqlSafeStr;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::connect::Connector;
use crate::error::is_lost;
use crate::sql::{Bind, Conn, Row};

/// Longest wait for a free connection, and for a new one.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait for an answer: above the server's own limit on statements, so
/// that it only ends waits for a server or a network that says nothing at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

async fn answered<T>(
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let Some(limit) = limit else {
        return work.await;
    };
    let silence = || Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()));
    timeout(limit, work)
        .await
        .unwrap_or_else(|_elapsed| silence())
}

/// Connections of one kind.
#[derive(Debug)]
pub(crate) struct Pool {
    connector: Connector,
    idle: Mutex<Vec<Conn>>,
    permits: Semaphore,
}

impl Pool {
    /// At most `size` connections, made when first needed.
    pub(crate) fn new(connector: Connector, size: usize) -> Self {
        Self {
            connector,
            idle: Mutex::new(Vec::new()),
            permits: Semaphore::new(size),
        }
    }

    /// Adds a connection that was made already.
    pub(crate) fn put(&self, conn: Conn) {
        self.lock().push(conn);
    }

    /// Waits for a connection.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn acquire(&self) -> Result<Pooled<'_>, sqlx::Error> {
        let permit = timeout(ACQUIRE_TIMEOUT, self.permits.acquire())
            .await
            .map_err(|_| sqlx::Error::PoolTimedOut)?
            .map_err(|_| sqlx::Error::PoolClosed)?;
        let idle = self.lock().pop();
        let conn = match idle {
            Some(conn) => conn,
            None => timeout(ACQUIRE_TIMEOUT, self.connector.connect())
                .await
                .map_err(|_| sqlx::Error::PoolTimedOut)??,
        };
        Ok(Pooled {
            conn: Some(conn),
            clean: true,
            pool: self,
            _permit: permit,
        })
    }

    /// Forgets idle connections: the server that they led to is gone.
    pub(crate) fn clear(&self) {
        if self.connector.is_replaceable() {
            self.lock().clear();
        }
    }

    /// Refuses further use and closes what is idle.
    pub(crate) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.lock());
        for conn in idle {
            if let Err(error) = conn.close().await {
                tracing::debug!(%error, "closing a database connection");
            }
        }
    }

    /// How long to wait for an answer; SQLite always answers.
    fn answer_limit(&self) -> Option<Duration> {
        self.connector.is_replaceable().then_some(ANSWER_TIMEOUT)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection on loan.
#[derive(Debug)]
pub(crate) struct Pooled<'p> {
    /// `None` only while dropping.
    conn: Option<Conn>,
    /// Whether every statement was answered.
    clean: bool,
    pool: &'p Pool,
    _permit: SemaphorePermit<'p>,
}

impl Pooled<'_> {
    /// See [`Conn::batch`].
    pub(crate) async fn batch(&mut self, sql: impl SqlSafeStr + Send) -> Result<(), sqlx::Error> {
        let limit = self.pool.answer_limit();
        let result = answered(limit, self.start()?.batch(sql)).await;
        self.finish(result)
    }

    /// See [`Conn::execute`].
    pub(crate) async fn execute(
        &mut self,
        sql: impl SqlSafeStr + Send,
        binds: Vec<Bind>,
    ) -> Result<u64, sqlx::Error> {
        let limit = self.pool.answer_limit();
        let result = answered(limit, self.start()?.execute(sql, binds)).await;
        self.finish(result)
    }

    /// See [`Conn::fetch`].
    pub(crate) async fn fetch(
        &mut self,
        sql: impl SqlSafeStr + Send,
        binds: Vec<Bind>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let limit = self.pool.answer_limit();
        let result = answered(limit, self.start()?.fetch(sql, binds)).await;
        self.finish(result)
    }

    /// Does not reuse the connection: nobody knows what state it is in.
    pub(crate) fn discard(mut self) {
        self.clean = false;
    }

    fn start(&mut self) -> Result<&mut Conn, sqlx::Error> {
        self.clean = false;
        self.conn.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    fn finish<T>(&mut self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        self.clean = match &result {
            Ok(_) => true,
            Err(error) => !is_lost(error),
        };
        result
    }
}

impl Drop for Pooled<'_> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take()
            && (self.clean || !self.pool.connector.is_replaceable())
            && !self.pool.permits.is_closed()
        {
            self.pool.put(conn);
        }
    }
}
