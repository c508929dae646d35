//! From a database URL to connections that are set up the way we need them.
//!
//! SQLite: WAL, so that readers never wait for the writer; `synchronous=FULL`,
//! because with WAL that is one fsync per commit and anything less may lose
//! commits that were acknowledged when the power fails; foreign keys on. The
//! file is made with mode 0600 and guarded by [`FileLock`].
//!
//! PostgreSQL: limits on statements and idle transactions, so that a stuck
//! orchestrator cannot hold the rows of the others for long.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::sql::Conn;
use crate::{Engine, OpenError};

/// One process has the file, so only a checkpoint can make a writer wait.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The session settings of every PostgreSQL connection. Rows are found by their
/// keys, so planning a statement anew for its values would only cost time.
const POSTGRES_SESSION: &str = "SET statement_timeout = '15s'; \
     SET idle_in_transaction_session_timeout = '15s'; \
     SET lock_timeout = '10s'; SET plan_cache_mode = 'force_generic_plan'";

/// What a database URL names. No `Debug`: the options hold a password.
pub(crate) enum Target {
    Memory,
    File(PathBuf),
    Postgres(Box<PgConnectOptions>),
}

impl Target {
    /// Reads a `DATABASE_URL`; unset or empty means memory.
    pub(crate) fn parse(url: Option<&str>) -> Result<Self, OpenError> {
        let Some(url) = url.filter(|url| !url.is_empty()) else {
            return Ok(Self::Memory);
        };
        if let Some(path) = url.strip_prefix("sqlite://") {
            if path.is_empty() || path.contains('?') {
                return Err(OpenError::Url);
            }
            return Ok(Self::File(PathBuf::from(path)));
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let options = PgConnectOptions::from_str(url).map_err(|source| OpenError::BadUrl {
                engine: "PostgreSQL",
                source,
            })?;
            let options = options
                .application_name("fuse-orchestrator")
                .disable_statement_logging();
            return Ok(Self::Postgres(Box::new(options)));
        }
        Err(OpenError::Url)
    }

    /// The engine.
    pub(crate) const fn engine(&self) -> Engine {
        match self {
            Self::Memory => Engine::Memory,
            Self::File(_) => Engine::File,
            Self::Postgres(_) => Engine::Postgres,
        }
    }

    /// How to make connections that read and write.
    pub(crate) fn writer(&self) -> Connector {
        match self {
            Self::Memory => Connector::Sqlite(Box::new(
                SqliteConnectOptions::new()
                    .in_memory(true)
                    .foreign_keys(true)
                    .disable_statement_logging(),
            )),
            Self::File(path) => Connector::Sqlite(Box::new(
                file_options(path)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full),
            )),
            Self::Postgres(options) => Connector::Postgres(options.clone()),
        }
    }

    /// How to make connections that only read.
    pub(crate) fn reader(&self) -> Connector {
        match self {
            Self::File(path) => Connector::Sqlite(Box::new(file_options(path).read_only(true))),
            Self::Memory | Self::Postgres(_) => self.writer(),
        }
    }
}

fn file_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

/// Makes connections of one kind. No derived `Debug`, as above.
#[derive(Clone)]
pub(crate) enum Connector {
    Sqlite(Box<SqliteConnectOptions>),
    Postgres(Box<PgConnectOptions>),
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite(_) => "Sqlite",
            Self::Postgres(_) => "Postgres",
        })
    }
}

impl Connector {
    /// A new connection.
    pub(crate) async fn connect(&self) -> Result<Conn, sqlx::Error> {
        match self {
            Self::Sqlite(options) => {
                let conn = SqliteConnection::connect_with(options).await?;
                Ok(Conn::Sqlite(Box::new(conn)))
            }
            Self::Postgres(options) => {
                let conn = PgConnection::connect_with(options).await?;
                let mut conn = Conn::Postgres(Box::new(conn));
                conn.batch(POSTGRES_SESSION).await?;
                Ok(conn)
            }
        }
    }

    /// Whether a new connection can take the place of a lost one. One to SQLite
    /// is never lost, and to a store in memory there is only the one.
    pub(crate) const fn is_replaceable(&self) -> bool {
        match self {
            Self::Sqlite(_) => false,
            Self::Postgres(_) => true,
        }
    }
}

/// An exclusive lock beside a SQLite file, for as long as the value lives. The
/// kernel drops it with the process, however that ends; what the lock file says
/// is only read to name the holder.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: File,
}

impl Drop for FileLock {
    /// Said, not left to the close: between the fork and the exec of a child of this process, which
    /// may be anybody's, the child has the file open, too.
    fn drop(&mut self) {
        // Closing it does the same, a moment later.
        let _closed_instead = self.file.unlock();
    }
}

impl FileLock {
    /// Makes the database file private, and locks it.
    pub(crate) fn take(database: &Path) -> Result<Self, OpenError> {
        let directory = database.parent().filter(|dir| !dir.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|dir| !dir.is_dir()) {
            return Err(OpenError::NoDirectory(directory.to_owned()));
        }
        let mut path = database.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let mut file = open_private(&path)?;
        if let Err(error) = file.try_lock() {
            return Err(match error {
                std::fs::TryLockError::WouldBlock => OpenError::Locked {
                    path: database.to_owned(),
                    holder: holder(&mut file),
                },
                std::fs::TryLockError::Error(source) => OpenError::File { path, source },
            });
        }
        let name = |source| OpenError::File {
            path: path.clone(),
            source,
        };
        file.set_len(0).map_err(name)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes())
            .map_err(name)?;
        open_private(database)?;
        Ok(Self { file })
    }
}

/// Opens a file for reading and writing, made with mode 0600 if it is not there.
fn open_private(path: &Path) -> Result<File, OpenError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|source| OpenError::File {
            path: path.to_owned(),
            source,
        })
}

/// `process 123 (orchestrator)`, as far as the lock file and `/proc` tell.
fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    let read = lock.rewind().and_then(|()| lock.read_to_string(&mut text));
    let pid = read.ok().and_then(|_| text.trim().parse::<u32>().ok());
    let Some(pid) = pid else {
        return "another process".to_owned();
    };
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn urls_name_their_engine() {
        let engine = |url| Target::parse(url).map(|target| target.engine()).ok();
        assert_eq!(engine(None), Some(Engine::Memory));
        assert_eq!(engine(Some("")), Some(Engine::Memory));
        assert_eq!(
            engine(Some("sqlite:///var/lib/fuse.db")),
            Some(Engine::File)
        );
        assert_eq!(
            engine(Some("postgres://u:p@h:5432/db")),
            Some(Engine::Postgres)
        );
        assert_eq!(engine(Some("postgresql://h/db")), Some(Engine::Postgres));
        for bad in ["mysql://h/db", "sqlite://", "sqlite://a?mode=ro", "fuse.db"] {
            assert_eq!(engine(Some(bad)), None, "{bad}");
        }
    }

    #[test]
    fn a_store_is_free_when_it_is_closed_whoever_inherited_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("fuse.db");
        let lock = FileLock::take(&database).unwrap();
        // What a child has until it has become another program.
        let inherited = lock.file.try_clone().unwrap();
        assert!(matches!(
            FileLock::take(&database),
            Err(OpenError::Locked { .. })
        ));
        drop(lock);
        FileLock::take(&database).unwrap();
        drop(inherited);
    }

    #[test]
    fn a_bad_url_does_not_repeat_its_password() {
        let error = Target::parse(Some("postgres://u:hunter2@h:port/db")).err();
        let error = error.expect("is refused");
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }

    #[test]
    fn the_file_is_private_and_a_second_holder_is_refused() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("fuse.db");
        let first = FileLock::take(&path).expect("locks");
        let mode = std::fs::metadata(&path)
            .expect("exists")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = FileLock::take(&path).expect_err("is refused").to_string();
        assert!(
            text.contains(&format!("in use by process {}", std::process::id())),
            "{text}"
        );
        drop(first);
        FileLock::take(&path).expect("locks again");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let text = FileLock::take(Path::new("/nonexistent/x/fuse.db")).expect_err("fails");
        assert!(text.to_string().contains("directory /nonexistent/x "));
    }
}
