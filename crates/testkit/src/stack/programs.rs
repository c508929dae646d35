//! Starting, killing and restarting the programs of a stack.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::Mutex;

use super::parts::{Database, Stack};
use crate::daemon::Daemon;
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
            &self.bins.path("fc-agent")?,
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
        let mut env = vec![
            (
                "ORCH_LISTEN".to_owned(),
                format!("127.0.0.1:{}", self.slot.orchestrator_port()),
            ),
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
        let daemon = Daemon::spawn(
            "orchestrator",
            &self.bins.path("orchestrator")?,
            &none,
            &env,
            &log,
        )?;
        let api = self.api()?;
        *self.orchestrator.lock().await = Some(daemon);
        until("the orchestrator is ready", START_DEADLINE, || async {
            still_runs(&self.orchestrator).await?;
            api.get("/ready").await?.expect(200)
        })
        .await?;
        Ok(())
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
        Ok(vec![
            ("FC_DIR".into(), path(&self.fc_dir())?),
            ("FC_SOCK_DIR".into(), path(&self.socket_dir())?),
            ("FC_BIN".into(), path(&self.bins.path("fc-emulator")?)?),
            ("FC_INITRD".into(), path(&self.image.initramfs())?),
            ("BASE_ROOTFS".into(), path(&self.image.base())?),
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
