//! How the store fails, and of which kind each failure is.

use std::path::PathBuf;

use fuse_model::{ErrorKind, IllegalTransition};
use thiserror::Error;

use crate::vault::VaultError;

/// A failed operation of an open store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The database does not answer. Nothing was written, or (when `ambiguous`)
    /// the answer to a commit got lost and only a later read can tell.
    #[error("the database does not answer{}", if *ambiguous { " and the outcome of the write is unknown" } else { "" })]
    Unavailable {
        /// Whether the write may have been committed.
        ambiguous: bool,
        /// What the driver said.
        #[source]
        source: sqlx::Error,
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
        source: sqlx::Error,
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
    /// The first reads and writes failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
