//! A real PostgreSQL for tests: a cluster of its own in a temporary directory, on a free port, gone when dropped.
//!
//! The server is never assumed to run; it is only assumed that its programs may be installed. As root it runs as the
//! user `postgres` (or `nobody`), because PostgreSQL refuses to be root. A watchdog holds a pipe to this process and
//! stops the server if this process dies without dropping it.
//!
//! Callers: the store's tests, the end-to-end suites and the benchmarks.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use nix::unistd::{Uid, User};
use tempfile::TempDir;

use crate::{SkipReason, free_port};

/// How a cluster treats the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// `fsync=off`: fast, and as good for everything but durability itself.
    #[default]
    Careless,
    /// As in production: what was committed survives a crash.
    Durable,
}

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    account: Option<User>,
    dir: TempDir,
    port: u16,
    databases: AtomicU32,
    watchdog: Option<Child>,
}

impl Postgres {
    /// Makes a cluster and starts it.
    ///
    /// # Errors
    /// [`SkipReason`] when PostgreSQL is not installed; else what went wrong, with the server's log.
    pub fn start(durability: Durability) -> Result<Self> {
        // A free port is anybody's until the server has it.
        for _ in 0..4 {
            match Self::start_on_a_free_port(durability) {
                Err(error) if format!("{error:#}").contains("Address already in use") => {}
                outcome => return outcome,
            }
        }
        Self::start_on_a_free_port(durability)
    }

    fn start_on_a_free_port(durability: Durability) -> Result<Self> {
        let programs = find_programs()?;
        let account = account()?;
        let dir = tempfile::Builder::new()
            .prefix("fuse-postgres-")
            .tempdir()?;
        if let Some(account) = &account {
            chown(
                dir.path(),
                Some(account.uid.as_raw()),
                Some(account.gid.as_raw()),
            )?;
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700))?;
        let mut server = Self {
            programs,
            account,
            dir,
            port: free_port()?,
            databases: AtomicU32::new(0),
            watchdog: None,
        };
        server.init(durability)?;
        server.run()?;
        server.watchdog = Some(server.watch()?);
        Ok(server)
    }

    /// The URL of a new, empty database of this server.
    ///
    /// # Errors
    /// The server refuses.
    pub fn database(&self) -> Result<String> {
        let name = format!("fuse_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.sql("postgres", &format!("CREATE DATABASE {name}"))?;
        Ok(format!("postgres://fuse@127.0.0.1:{}/{name}", self.port))
    }

    /// What `psql` prints for a statement, as an outsider sees the database of `url`.
    ///
    /// # Errors
    /// The statement fails.
    pub fn query(&self, url: &str, sql: &str) -> Result<String> {
        self.sql(url.rsplit('/').next().unwrap_or("postgres"), sql)
    }

    /// Stops the server as a power failure would; [`Postgres::run`] starts it again.
    ///
    /// # Errors
    /// It does not stop.
    pub fn crash(&self) -> Result<()> {
        self.stop("immediate")
    }

    /// [`Postgres::crash`] and [`Postgres::run`].
    ///
    /// # Errors
    /// It does not come back.
    pub fn crash_and_restart(&self) -> Result<()> {
        self.crash()?;
        self.run()
    }

    /// Stops the server in an orderly way; [`Postgres::run`] starts it again.
    ///
    /// # Errors
    /// It does not stop.
    pub fn halt(&self) -> Result<()> {
        self.stop("fast")
    }

    /// Starts the server and waits until it accepts connections.
    ///
    /// # Errors
    /// It does not start; the text has its log.
    pub fn run(&self) -> Result<()> {
        let log = self.dir.path().join("log");
        let mut command = self.command("pg_ctl");
        command
            .arg("--pgdata")
            .arg(self.data())
            .arg("--log")
            .arg(&log);
        // The server inherits these and would hold a captured pipe open for good.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let status = command
            .args(["--wait", "--timeout", "60", "start"])
            .status()?;
        if !status.success() {
            bail!(
                "PostgreSQL does not start:\n{}",
                fs::read_to_string(log).unwrap_or_default()
            );
        }
        Ok(())
    }

    fn init(&self, durability: Durability) -> Result<()> {
        let mut initdb = self.command("initdb");
        initdb.arg("--pgdata").arg(self.data());
        initdb.args([
            "--username",
            "fuse",
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
        ]);
        output(initdb.args(["--no-locale", "--no-sync"])).context("making a PostgreSQL cluster")?;
        let fsync = match durability {
            Durability::Careless => "off",
            Durability::Durable => "on",
        };
        let sockets = self.dir.path().display();
        let settings = format!(
            "port = {}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{sockets}'\n\
             fsync = {fsync}\nmax_connections = 100\n",
            self.port
        );
        let file = self.data().join("postgresql.auto.conf");
        fs::write(&file, settings).context("writing the server's settings")?;
        Ok(())
    }

    fn stop(&self, mode: &str) -> Result<()> {
        let mut command = self.command("pg_ctl");
        command
            .arg("--pgdata")
            .arg(self.data())
            .args(["--mode", mode, "--wait", "stop"]);
        output(&mut command)
            .map(drop)
            .context("stopping PostgreSQL")
    }

    /// A shell that waits for our end of its standard input to close.
    fn watch(&self) -> Result<Child> {
        let mut command = self.command_of(Path::new("/bin/sh"));
        let script = r#"cat >/dev/null; exec "$0" --pgdata "$1" --mode immediate stop"#;
        command
            .args(["-c", script])
            .arg(self.programs.join("pg_ctl"))
            .arg(self.data());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
            .process_group(0)
            .spawn()
            .context("starting the watchdog")
    }

    fn sql(&self, database: &str, sql: &str) -> Result<String> {
        let mut command = self.command("psql");
        command
            .arg("--host")
            .arg(self.dir.path())
            .arg("--port")
            .arg(self.port.to_string());
        command.args([
            "--username",
            "fuse",
            "--dbname",
            database,
            "--no-psqlrc",
            "--quiet",
        ]);
        command.args(["--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1"]);
        output(command.arg("--command").arg(sql)).with_context(|| format!("running {sql:?}"))
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        self.command_of(&self.programs.join(program))
    }

    fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some(account) = &self.account {
            command.uid(account.uid.as_raw()).gid(account.gid.as_raw());
        }
        command.current_dir(self.dir.path()).env("LC_ALL", "C");
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Err(error) = self.stop("immediate") {
            eprintln!("a test's PostgreSQL may be left running: {error:#}");
        }
        if let Some(mut watchdog) = self.watchdog.take() {
            drop(watchdog.stdin.take());
            // Its own stop fails now that the server is gone; that is no news.
            drop(watchdog.wait());
        }
    }
}

/// Runs a program to its end and answers what it printed.
fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        bail!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The newest installed version's programs: Debian keeps them off the path.
fn find_programs() -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, bin)| bin.join("initdb").is_file())
        .collect();
    found.sort();
    if let Some((_, bin)) = found.pop() {
        return Ok(bin);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let on_path = path
        .split(':')
        .map(PathBuf::from)
        .find(|dir| dir.join("initdb").is_file());
    on_path.ok_or_else(|| SkipReason("PostgreSQL is not installed".to_owned()).into())
}

/// Who the server runs as: ourselves, unless we are root.
fn account() -> Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    Err(SkipReason("neither a user postgres nor nobody to run PostgreSQL as".to_owned()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_was_committed_through_a_crash() {
        let server = match Postgres::start(Durability::Durable) {
            Ok(server) => server,
            Err(error) if error.is::<SkipReason>() => {
                crate::skip!("testkit::postgres", "{error}");
            }
            Err(error) => panic!("{error:#}"),
        };
        let (url, other) = (
            server.database().expect("makes"),
            server.database().expect("makes"),
        );
        server
            .query(&url, "CREATE TABLE t (a INT); INSERT INTO t VALUES (7)")
            .expect("runs");
        assert!(server.query(&other, "SELECT a FROM t").is_err());
        server.crash_and_restart().expect("comes back");
        assert_eq!(server.query(&url, "SELECT a FROM t").expect("reads"), "7");
    }
}
