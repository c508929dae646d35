//! Starting, killing and restarting the programs of a stack.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::Mutex;

use super::parts::{Database, Part, Stack};
use crate::api::Api;
use crate::bins::Release;
use crate::daemon::Daemon;
use crate::slot::free_port;
use crate::wait::until;

/// A program that does not serve by then is broken.
const START_DEADLINE: Duration = Duration::from_secs(30);
impl Stack {
    /// Starts the agent (again) and waits until it serves.
    ///
    /// # Errors
    /// When it does not serve in time.
    pub async fn start_agent(&self) -> Result<()> {
        let mut env = self.slot.agent_env();
        env.extend(self.agent_env()?);
        env.extend(self.options.agent_env.clone());
        let log = self.logs().join("fc-agent.log");
        let daemon = Daemon::spawn(
            "fc-agent",
            &self.release_of(Part::Agent).bins.path("fc-agent")?,
            &["serve"],
            &env,
            &log,
        )?;
        let api = self.agent_api()?;
        *self.agent.lock().await = Some(daemon);
        until("fc-agent serves", START_DEADLINE, || async {
            still_runs(&self.agent).await?;
            api.get("/healthz").await?.expect(200)
        })
        .await?;
        Ok(())
    }

    /// Starts the orchestrator (again) and waits until it is ready.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub async fn start_orchestrator(&self) -> Result<()> {
        let release = self.release_of(Part::Orchestrator);
        let daemon = self.spawn_orchestrator(&release, self.slot.orchestrator_port())?;
        let api = self.api()?;
        *self.orchestrator.lock().await = Some(daemon);
        until("the orchestrator is ready", START_DEADLINE, || async {
            still_runs(&self.orchestrator).await?;
            api.get("/ready").await?.expect(200)
        })
        .await?;
        Ok(())
    }

    /// Starts one more orchestrator on the same database, of another build, and a client of it.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub async fn replica(&self, release: &Release) -> Result<(Daemon, Api)> {
        let port = free_port()?;
        let daemon = Mutex::new(Some(self.spawn_orchestrator(release, port)?));
        let api = Api::new(format!("http://127.0.0.1:{port}"), Some(&self.token))?;
        until("the replica is ready", START_DEADLINE, || async {
            still_runs(&daemon).await?;
            api.get("/ready").await?.expect(200)
        })
        .await?;
        let daemon = daemon.into_inner().context("the replica was stopped")?;
        Ok((daemon, api))
    }

    fn spawn_orchestrator(&self, release: &Release, port: u16) -> Result<Daemon> {
        let mut env = vec![
            ("ORCH_LISTEN".to_owned(), format!("127.0.0.1:{port}")),
            ("ORCH_AUTH_TOKEN".to_owned(), self.token.clone()),
            (
                "TOKEN_ENCRYPTION_KEY".to_owned(),
                self.encryption_key.clone(),
            ),
            // The default of 30 s is for production; tests wait for what reconcile does.
            ("ORCH_RECONCILE_INTERVAL_SECONDS".to_owned(), "1".to_owned()),
        ];
        match &self.options.database {
            Database::File => env.push((
                "DATABASE_URL".into(),
                format!("sqlite://{}", self.database_file().display()),
            )),
            Database::Memory => {}
            Database::Url(url) => env.push(("DATABASE_URL".into(), url.clone())),
        }
        env.extend(self.options.orchestrator_env.clone());
        let log = self.logs().join("orchestrator.log");
        let none: [&str; 0] = [];
        let program = release.bins.path("orchestrator")?;
        Daemon::spawn("orchestrator", &program, &none, &env, &log)
    }

    /// `kill -9` of the agent.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill_agent(&self) -> Result<()> {
        self.agent
            .lock()
            .await
            .take()
            .context("the agent does not run")?
            .kill()
            .await
    }

    /// `kill -9` of the orchestrator.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill_orchestrator(&self) -> Result<()> {
        self.orchestrator
            .lock()
            .await
            .take()
            .context("the orchestrator does not run")?
            .kill()
            .await
    }

    fn agent_env(&self) -> Result<Vec<(String, String)>> {
        let path = |p: &Path| {
            p.to_str()
                .map(str::to_owned)
                .with_context(|| format!("{} is not UTF-8", p.display()))
        };
        let emulator = self.release_of(Part::Agent).bins.path("fc-emulator")?;
        let image = self.release_of(Part::Image).image;
        self.link_kernel(&image)?;
        Ok(vec![
            ("FC_DIR".into(), path(&self.fc_dir())?),
            ("FC_SOCK_DIR".into(), path(&self.socket_dir())?),
            ("FC_BIN".into(), path(&emulator)?),
            ("FC_INITRD".into(), path(&image.initramfs())?),
            ("BASE_ROOTFS".into(), path(&image.base())?),
            ("FC_AGENT_TOKEN".into(), self.agent_token.clone()),
        ])
    }
}

async fn still_runs(daemon: &Mutex<Option<Daemon>>) -> Result<()> {
    match daemon.lock().await.as_mut() {
        Some(daemon) => daemon.still_runs(),
        None => bail!("was stopped"),
    }
}
