//! How the store fails, and of which kind each failure is.

use std::path::PathBuf;
use std::sync::Arc;

use fuse_model::{ErrorKind, IllegalTransition};
use thiserror::Error;

use crate::vault::VaultError;

/// A failed operation of an open store. Cheap to clone: one failure of the
/// database answers every write that was under way.
#[derive(Debug, Clone, Error)]
pub enum StoreError {
    /// The database does not answer. Nothing was written, or (when `ambiguous`)
    /// the answer to a commit got lost and only a later read can tell.
    #[error("the database does not answer{}", if *ambiguous { " and the outcome of the write is unknown" } else { "" })]
    Unavailable {
        /// Whether the write may have been committed.
        ambiguous: bool,
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// Too many writes are waiting already.
    #[error("too many writes are waiting for the database")]
    Overloaded,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The database refused a statement.
    #[error("the database refused to {step}")]
    Statement {
        /// What was attempted.
        step: &'static str,
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// A stored value cannot be read back.
    #[error("column {column} of {table} holds a value that this version cannot read: {reason}")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A secret could not be sealed or opened.
    #[error("secret of {entity} {id}")]
    Secret {
        /// Kind of the record.
        entity: &'static str,
        /// Id of the record.
        id: String,
        /// What went wrong.
        #[source]
        source: VaultError,
    },
    /// The state does not allow the trigger.
    #[error(transparent)]
    Illegal(#[from] IllegalTransition),
}

impl StoreError {
    /// Sorts what the driver said while attempting `step`.
    pub(crate) fn from_sqlx(step: &'static str, error: sqlx::Error) -> Self {
        let unavailable = is_unavailable(&error);
        let source = Arc::new(error);
        if unavailable {
            Self::Unavailable {
                ambiguous: false,
                source,
            }
        } else {
            Self::Statement { step, source }
        }
    }

    /// Sorts what the driver said to a `COMMIT`: if the answer got lost, nobody
    /// knows whether it happened.
    pub(crate) fn from_commit(error: sqlx::Error) -> Self {
        let ambiguous = is_lost(&error);
        match Self::from_sqlx("commit", error) {
            Self::Unavailable { source, .. } => Self::Unavailable { ambiguous, source },
            other => other,
        }
    }

    /// Whether the same transaction may go through when it is tried once more.
    pub(crate) fn is_contention(&self) -> bool {
        match self {
            Self::Unavailable { source, .. } | Self::Statement { source, .. } => {
                has_code(source, CONTENTION)
            }
            Self::Overloaded
            | Self::Closed
            | Self::Corrupt { .. }
            | Self::Secret { .. }
            | Self::Illegal(_) => false,
        }
    }

    /// The kind that the control plane answers with.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Unavailable { .. } | Self::Overloaded | Self::Closed => ErrorKind::Unavailable,
            Self::Illegal(_) => ErrorKind::Conflict,
            Self::Statement { .. } | Self::Corrupt { .. } | Self::Secret { .. } => {
                ErrorKind::Internal
            }
        }
    }
}

/// PostgreSQL: serialization failure, deadlock. SQLite: busy, locked.
const CONTENTION: &[&str] = &["40001", "40P01", "5", "6"];

/// PostgreSQL: connection class, shutdown class, too many connections, out of
/// disk, statement and lock timeouts. SQLite: busy, locked, I/O error, full.
const UNAVAILABLE: &[&str] = &[
    "08000", "08001", "08003", "08004", "08006", "57P01", "57P02", "57P03", "53100", "53300",
    "57014", "55P03", "5", "6", "10", "13",
];

/// The server ended the session.
const LOST: &[&str] = &["08003", "08006", "57P01", "57P02", "57P03", "25P03"];

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    let sqlx::Error::Database(error) = error else {
        return false;
    };
    let Some(code) = error.code() else {
        return false;
    };
    // SQLite reports extended codes; the low byte is the primary one.
    let primary = code
        .parse::<u32>()
        .ok()
        .filter(|_| code.len() < 5)
        .map(|n| (n & 0xff).to_string());
    codes.contains(&primary.as_deref().unwrap_or(&code))
}

/// Whether the connection is of no further use.
pub(crate) fn is_lost(error: &sqlx::Error) -> bool {
    has_code(error, LOST)
        || matches!(
            error,
            sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::WorkerCrashed
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
        )
}

fn is_unavailable(error: &sqlx::Error) -> bool {
    is_lost(error) || has_code(error, UNAVAILABLE)
}

/// Why a store could not be opened. Texts are for the operator.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The URL names no engine that we know.
    #[error(
        "DATABASE_URL must start with postgres:// or sqlite:// (or be unset for a store in memory)"
    )]
    Url,
    /// The URL does not parse; its text may hold a password and is not repeated.
    #[error("DATABASE_URL is not a valid {engine} URL")]
    BadUrl {
        /// The engine that it names.
        engine: &'static str,
        /// What the parser said.
        #[source]
        source: sqlx::Error,
    },
    /// The directory of the database file is not there.
    #[error("directory {} of the SQLite database does not exist: create it first", .0.display())]
    NoDirectory(PathBuf),
    /// The file or its lock could not be opened.
    #[error("could not open {}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another process has the database file open.
    #[error(
        "database {} is in use by {holder}: stop that process first, or point DATABASE_URL elsewhere",
        path.display()
    )]
    Locked {
        /// The database file.
        path: PathBuf,
        /// `process 123 (orchestrator)`, as far as known.
        holder: String,
    },
    /// No connection.
    #[error("could not connect to the database")]
    Connect(#[source] sqlx::Error),
    /// A migration failed; the ones before it are in place.
    #[error("migration {name} failed; the database is as it was before it")]
    Migrate {
        /// Which one.
        name: &'static str,
        /// What the driver said.
        #[source]
        source: sqlx::Error,
    },
    /// The database has migrations that this program does not know.
    #[error(
        "the database was migrated by a newer version (it has {0:?}): run that version or a newer one"
    )]
    Newer(String),
    /// A migration was applied in another wording than this program has.
    #[error(
        "the database was made by a development build: its migration {0:?} differs from this program's. \
         start with a new database, or run the build that made this one"
    )]
    Changed(&'static str),
    /// The first reads and writes failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
