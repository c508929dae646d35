//! A control plane alone, on the stub provider: how fast it starts, what it weighs, and the base of the store figures.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuse_testkit::postgres::{Durability, Postgres};
use fuse_testkit::{
    Api, Bins, Daemon, SkipReason, Slot, Stack, StackOptions, leftovers, missing_for_guests,
};

use crate::report::{Budget, Report};
use crate::stats::Series;

const GROUP: &str = "startup";
/// Token of the measured control planes.
const TOKEN: &str = "bench-token";
/// A control plane that does not serve by then is broken.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// Where state is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// SQLite in memory.
    Memory,
    /// SQLite in a file.
    File,
    /// PostgreSQL with `fsync=on`.
    Postgres,
}

impl Engine {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::File, Self::Postgres];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "SQLite memory",
            Self::File => "SQLite file",
            Self::Postgres => "Postgres",
        }
    }
}

/// A running orchestrator without hosts.
pub(crate) struct Plane {
    engine: Engine,
    slot: Slot,
    url: Option<String>,
    daemon: tokio::sync::Mutex<Option<Daemon>>,
    postgres: Option<Postgres>,
    env: Vec<(String, String)>,
}

impl Plane {
    /// Starts one; `None` when the engine is not installed here.
    pub(crate) async fn start(engine: Engine) -> Result<Option<Self>> {
        Self::start_with(engine, Vec::new()).await
    }

    /// The same, with more environment.
    pub(crate) async fn start_with(
        engine: Engine,
        env: Vec<(String, String)>,
    ) -> Result<Option<Self>> {
        let slot = Slot::claim()?;
        std::fs::create_dir_all(slot.dir())?;
        let mut postgres = None;
        let url = match engine {
            Engine::Memory => None,
            Engine::File => Some(format!(
                "sqlite://{}",
                slot.dir().join("bench.db").display()
            )),
            Engine::Postgres => {
                let server = match Postgres::start(Durability::Durable) {
                    Ok(server) => server,
                    Err(error) if error.is::<SkipReason>() => return Ok(None),
                    Err(error) => return Err(error),
                };
                let url = server.database()?;
                postgres = Some(server);
                Some(url)
            }
        };
        let plane = Self {
            engine,
            slot,
            url,
            daemon: tokio::sync::Mutex::new(None),
            postgres,
            env,
        };
        plane.launch().await?;
        Ok(Some(plane))
    }

    pub(crate) fn engine(&self) -> Engine {
        self.engine
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.slot.orchestrator_port()))
    }

    pub(crate) fn token(&self) -> &str {
        TOKEN
    }

    /// Runs a statement past the program; on PostgreSQL only.
    pub(crate) fn sql(&self, text: &str) -> Result<String> {
        let server = self.postgres.as_ref().context("not on PostgreSQL")?;
        server.query(self.url.as_deref().unwrap_or_default(), text)
    }

    /// Starts the program: time until the port accepts, and until `/ready` says yes.
    async fn launch(&self) -> Result<(Duration, Duration)> {
        let mut env = vec![
            ("ORCH_LISTEN".to_owned(), self.address().to_string()),
            ("ORCH_AUTH_TOKEN".to_owned(), TOKEN.to_owned()),
            ("TOKEN_ENCRYPTION_KEY".to_owned(), "5a".repeat(32)),
            ("RUST_LOG".to_owned(), "warn".to_owned()),
        ];
        env.extend(
            self.url
                .iter()
                .map(|url| ("DATABASE_URL".to_owned(), url.clone())),
        );
        env.extend(self.env.iter().cloned());
        let program = Bins::find()?.path("orchestrator")?;
        let none: [&str; 0] = [];
        let start = Instant::now();
        let mut daemon = Daemon::spawn(
            "orchestrator",
            &program,
            &none,
            &env,
            &self.slot.dir().join("orchestrator.log"),
        )?;
        while TcpStream::connect(self.address()).is_err() {
            daemon.still_runs()?;
            ensure!(
                start.elapsed() < START_DEADLINE,
                "the orchestrator does not listen:\n{}",
                daemon.log_tail()
            );
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        let listens = start.elapsed();
        let api = Api::new(format!("http://{}", self.address()), Some(TOKEN))?;
        while api.get("/ready").await?.status != 200 {
            ensure!(
                start.elapsed() < START_DEADLINE,
                "the orchestrator is not ready:\n{}",
                daemon.log_tail()
            );
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        let ready = start.elapsed();
        *self.daemon.lock().await = Some(daemon);
        Ok((listens, ready))
    }

    async fn halt(&self) -> Result<()> {
        let mut daemon = self
            .daemon
            .lock()
            .await
            .take()
            .context("the orchestrator does not run")?;
        daemon.stop().await?;
        Ok(())
    }

    /// Restarts with `count` environments in the store and reports how long it takes to be ready.
    pub(crate) async fn restart_with_many(&self, report: &mut Report, count: usize) -> Result<()> {
        if self.engine == Engine::Memory {
            return Ok(());
        }
        self.halt().await?;
        let (_, ready) = self.launch().await?;
        let what = format!("ready with {count} environments, {}", self.engine.name());
        report.add(
            "store",
            what,
            ready.as_secs_f64() * 1_000.0,
            "ms",
            Budget::AtMost(500.0),
        );
        Ok(())
    }

    /// Resident memory of the orchestrator.
    pub(crate) async fn resident_mib(&self) -> Result<f64> {
        let daemon = self.daemon.lock().await;
        let pid = daemon.as_ref().and_then(Daemon::pid);
        resident_mib(pid.context("the orchestrator does not run")?)
    }

    pub(crate) async fn stop(self) -> Result<()> {
        self.halt().await?;
        leftovers::purge(&self.slot)
    }
}

/// Start-up on a migrated store, and memory of idle programs.
pub(crate) async fn measure(report: &mut Report, quick: bool) -> Result<()> {
    for (engine, budget) in [(Engine::File, 30.0), (Engine::Postgres, 60.0)] {
        let Some(plane) = Plane::start(engine).await? else {
            report.skipped(
                GROUP,
                format!("start-up on {}", engine.name()),
                "no PostgreSQL is installed",
            );
            continue;
        };
        let mut samples = Vec::new();
        for _ in 0..if quick { 3 } else { 11 } {
            plane.halt().await?;
            samples.push(plane.launch().await?.1);
        }
        let what = format!("orchestrator ready, migrated {}", engine.name());
        report.add(
            GROUP,
            what,
            Series::new(samples).p50_ms(),
            "ms p50",
            Budget::AtMost(budget),
        );
        plane.stop().await?;
    }
    idle_memory(report).await
}

/// Resident memory of both programs of a stack in which nothing happens.
async fn idle_memory(report: &mut Report) -> Result<()> {
    if let Some(reason) = missing_for_guests() {
        report.skipped(GROUP, "idle memory", &reason);
        return Ok(());
    }
    let stack = Stack::start(StackOptions::default()).await?;
    let dir = format!("{}/", stack.dir().display());
    for (program, budget) in [("orchestrator", 40.0), ("fc-agent", 20.0)] {
        let process = leftovers::processes_about(&dir)
            .into_iter()
            .find(|p| {
                p.cmdline
                    .split(' ')
                    .next()
                    .is_some_and(|path| path.ends_with(&format!("/{program}")))
            })
            .with_context(|| format!("{program} is not running"))?;
        report.add(
            GROUP,
            format!("{program}, idle"),
            resident_mib(process.pid)?,
            "MiB",
            Budget::AtMost(budget),
        );
    }
    stack.teardown().await
}

/// Resident memory of a process.
pub(crate) fn resident_mib(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
