//! A whole Fuse on this machine: orchestrator, `fc-agent`, `fc-emulator`, in a [`Slot`] of its own.
//!
//! The programs run as a user would run them, with nothing but their documented configuration. [`Stack::teardown`]
//! must be called: it destroys what runs, stops the programs in an orderly way, and fails when anything is left.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use crate::api::Api;
use crate::bins::{Bins, Image};
use crate::cli::Fuse;
use crate::daemon::Daemon;
use crate::guest::Guest;
use crate::leftovers;
use crate::slot::Slot;
use crate::wait::until;

/// A program that does not serve by then is broken.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// Id under which the stack's agent is registered.
const HOST_ID: &str = "h1";

/// Guests that boot at the same time, over all stacks of this process: more make each other late on two cores.
static BOOTS: Semaphore = Semaphore::const_new(2);

/// Where the orchestrator keeps its state.
#[derive(Debug, Clone, Default)]
pub enum Database {
    /// A SQLite file in the stack's directory; survives a restart.
    #[default]
    File,
    /// SQLite in memory.
    Memory,
    /// Any `DATABASE_URL`.
    Url(String),
}

/// What a stack is made of. The default is a file store and one registered host.
#[derive(Debug, Clone, Default)]
pub struct StackOptions {
    /// Store of the orchestrator.
    pub database: Database,
    /// More environment for the agent; wins over the stack's own.
    pub agent_env: Vec<(String, String)>,
    /// More environment for the orchestrator; wins over the stack's own.
    pub orchestrator_env: Vec<(String, String)>,
    /// Root of the agent's state, when not in the stack's directory.
    pub fc_dir: Option<PathBuf>,
}

/// What the agent recorded about one VM: enough to look for its traces later.
#[derive(Debug, Clone)]
pub struct VmRecord {
    /// VM id.
    pub id: String,
    /// Host interface.
    pub tap: String,
    /// Address in the guest.
    pub guest_ip: String,
    /// Host port of the guest agent.
    pub host_port: u64,
    /// Process of the VMM.
    pub pid: u32,
}

/// A running stack.
#[derive(Debug)]
pub struct Stack {
    slot: Slot,
    bins: Bins,
    image: Image,
    options: StackOptions,
    token: String,
    agent_token: String,
    encryption_key: String,
    orchestrator: Mutex<Option<Daemon>>,
    agent: Mutex<Option<Daemon>>,
}

/// Waits until `count` more guests may boot. Hold the permit until they have.
///
/// # Errors
/// Never in practice: the semaphore is not closed.
pub async fn boot_permit(count: u32) -> Result<SemaphorePermit<'static>> {
    Ok(BOOTS.acquire_many(count).await?)
}

impl Stack {
    /// Starts everything and registers the host.
    ///
    /// # Errors
    /// When a program is not built, the image is missing or something does not come up.
    pub async fn start(options: StackOptions) -> Result<Self> {
        Self::start_in(Slot::claim()?, options).await
    }

    /// As [`Self::start`], in a slot claimed before, for tests that prepare its directory.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_in(slot: Slot, options: StackOptions) -> Result<Self> {
        let stack = Self {
            slot,
            bins: Bins::find()?,
            image: Image::find()?,
            options,
            token: random_hex(),
            agent_token: random_hex(),
            encryption_key: random_hex(),
            orchestrator: Mutex::new(None),
            agent: Mutex::new(None),
        };
        stack.lay_out()?;
        stack.start_agent().await?;
        stack.start_orchestrator().await?;
        let body = json!({"id": HOST_ID, "url": stack.agent_url(), "token": stack.agent_token, "capacity": {"vm_count": 32}});
        stack.api()?.post("/v1/hosts", &body).await?.expect(201)?;
        Ok(stack)
    }

    /// Directory of everything the stack writes.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.slot.dir()
    }

    /// The slot it runs in.
    #[must_use]
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The programs it runs.
    #[must_use]
    pub fn bins(&self) -> &Bins {
        &self.bins
    }

    /// The image its guests boot.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Root of the agent's state.
    #[must_use]
    pub fn fc_dir(&self) -> PathBuf {
        self.options
            .fc_dir
            .clone()
            .unwrap_or_else(|| self.dir().join("fc"))
    }

    /// Directory of named images.
    #[must_use]
    pub fn images_dir(&self) -> PathBuf {
        self.fc_dir().join("images")
    }

    /// Directory of the programs' logs.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.dir().join("logs")
    }

    /// The database file of [`Database::File`].
    #[must_use]
    pub fn database_file(&self) -> PathBuf {
        self.dir().join("fuse.db")
    }

    /// Base URL of the orchestrator.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.slot.orchestrator_port())
    }

    /// Base URL of the agent.
    #[must_use]
    pub fn agent_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.slot.agent_port())
    }

    /// The master token.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The agent's token.
    #[must_use]
    pub fn agent_token(&self) -> &str {
        &self.agent_token
    }

    /// Client of the orchestrator with the master token.
    ///
    /// # Errors
    /// When the HTTP client cannot be built.
    pub fn api(&self) -> Result<Api> {
        Api::new(self.url(), Some(&self.token))
    }

    /// Client of the agent with its token.
    ///
    /// # Errors
    /// When the HTTP client cannot be built.
    pub fn agent_api(&self) -> Result<Api> {
        Api::new(self.agent_url(), Some(&self.agent_token))
    }

    /// A new CLI user called `name`, connected to this stack.
    ///
    /// # Errors
    /// When the CLI is not built or `fuse connect` fails.
    pub async fn fuse(&self, name: &str) -> Result<Fuse> {
        let fuse = Fuse::new(&self.bins, &self.dir().join("home").join(name))?;
        fuse.run(&[
            "connect",
            &self.url(),
            "--token",
            &self.token,
            "--name",
            "stack",
        ])
        .await?
        .ok()?;
        Ok(fuse)
    }

    /// Creates an environment through the API and expects it to run.
    ///
    /// # Errors
    /// On any answer but 201.
    pub async fn create(&self, body: &Value) -> Result<Guest> {
        let object = self
            .api()?
            .post("/v1/environments", body)
            .await?
            .expect(201)?
            .json()?;
        ensure!(object["state"] == "running", "created but {object}");
        Guest::new(object, self.api()?, self.agent_api()?)
    }

    /// A small environment for task `task`; waits for its turn to boot.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn boot(&self, task: &str) -> Result<Guest> {
        let _turn = boot_permit(1).await?;
        self.create(&json!({"task_id": task, "spec": {"cpus": 1, "ram_mb": 256}}))
            .await
    }

    /// The environment `id`, created by other means.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn guest(&self, id: &str) -> Result<Guest> {
        let object = self
            .api()?
            .get(&format!("/v1/environments/{id}"))
            .await?
            .expect(200)?
            .json()?;
        Guest::new(object, self.api()?, self.agent_api()?)
    }

    /// What the agent keeps about VM `id`.
    ///
    /// # Errors
    /// When it keeps nothing.
    pub fn record(&self, id: &str) -> Result<VmRecord> {
        let path = self
            .fc_dir()
            .join("agent-state/vms")
            .join(id)
            .join("meta.json");
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let meta: Value =
            serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
        let text = |name: &str| {
            meta[name]
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("{name} in {meta}"))
        };
        let number = |name: &str| {
            meta[name]
                .as_u64()
                .with_context(|| format!("{name} in {meta}"))
        };
        Ok(VmRecord {
            id: id.to_owned(),
            tap: text("tap")?,
            guest_ip: text("guest_ip")?,
            host_port: number("host_port")?,
            pid: u32::try_from(number("pid")?)?,
        })
    }

    /// Ids of the VMs that the agent lists.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn vm_ids(&self) -> Result<Vec<String>> {
        let list = self.agent_api()?.get("/v1/vm").await?.expect(200)?.json()?;
        let vms = list["vms"]
            .as_array()
            .with_context(|| format!("no vms in {list}"))?;
        Ok(vms
            .iter()
            .filter_map(|vm| vm["vm_id"].as_str().map(str::to_owned))
            .collect())
    }

    /// Fails when anything of the destroyed VM is still on the machine: process, tap, nft element, file, mount.
    ///
    /// # Errors
    /// Lists what is left.
    pub fn expect_gone(&self, vm: &VmRecord) -> Result<()> {
        let mut left = self.traces(&vm.id);
        if leftovers::interfaces(&vm.tap).contains(&vm.tap) {
            left.push(format!("tap {}", vm.tap));
        }
        let table = leftovers::nft_table(&self.slot.nft_table()).unwrap_or_default();
        let words = |text: &str| {
            text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for trace in [&vm.guest_ip, &vm.host_port.to_string(), &vm.tap] {
            if words(&table).contains(trace) {
                left.push(format!("{trace} in the nftables table:\n{table}"));
            }
        }
        ensure!(
            left.is_empty(),
            "{} is gone but left:\n{}",
            vm.id,
            left.join("\n")
        );
        Ok(())
    }

    /// Processes, files and mounts that carry the name `id`.
    #[must_use]
    pub fn traces(&self, id: &str) -> Vec<String> {
        let dir = format!("{}/", self.dir().display());
        let processes = leftovers::processes_about(id)
            .into_iter()
            .filter(|p| p.cmdline.contains(&dir));
        let mut left: Vec<String> = processes
            .map(|p| format!("process {} {}", p.pid, p.cmdline))
            .collect();
        left.extend(
            leftovers::files_about(&self.fc_dir(), id)
                .into_iter()
                .map(|f| format!("file {f}")),
        );
        left.extend(
            leftovers::files_about(&self.socket_dir(), id)
                .into_iter()
                .map(|f| format!("file {f}")),
        );
        left.extend(
            leftovers::mounts(&self.dir())
                .into_iter()
                .filter(|m| m.contains(id))
                .map(|m| format!("mount {m}")),
        );
        left
    }

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

    /// Destroys every environment, stops both programs and fails when anything is left. Cleans up in any case.
    ///
    /// # Errors
    /// Names what did not stop or was left.
    pub async fn teardown(self) -> Result<()> {
        let mut problems: Vec<String> = Vec::new();
        if let Err(error) = self.destroy_all().await {
            problems.push(format!("{error:#}"));
        }
        for (name, daemon) in [
            ("orchestrator", &self.orchestrator),
            ("fc-agent", &self.agent),
        ] {
            if let Some(mut daemon) = daemon.lock().await.take() {
                match daemon.stop().await {
                    Ok(status) if status.success() => {}
                    Ok(status) => problems.push(format!(
                        "{name} ended with {status}:\n{}",
                        daemon.log_tail()
                    )),
                    Err(error) => problems.push(format!("{error:#}")),
                }
            }
        }
        problems.extend(
            leftovers::find(&self.slot)
                .into_iter()
                .filter(|l| !l.starts_with("loop") && !l.starts_with("mount")),
        );
        if problems.is_empty() || std::env::var_os("FUSE_TEST_KEEP").is_none() {
            leftovers::purge(&self.slot)?;
        }
        ensure!(problems.is_empty(), "teardown:\n{}", problems.join("\n"));
        Ok(())
    }

    /// Copies the logs of programs and guests to `target`, for looking at after a failure.
    ///
    /// # Errors
    /// When files cannot be copied.
    pub fn save_logs(&self, target: &Path) -> Result<()> {
        std::fs::create_dir_all(target)?;
        for (dir, prefix) in [
            (self.logs(), ""),
            (self.fc_dir().join("agent-state/vms"), "vm-"),
        ] {
            for file in leftovers::files_about(&dir, ".log") {
                let name = Path::new(&file)
                    .strip_prefix(&dir)?
                    .to_string_lossy()
                    .replace('/', "-");
                std::fs::copy(&file, target.join(format!("{prefix}{name}")))?;
            }
        }
        Ok(())
    }

    async fn destroy_all(&self) -> Result<()> {
        let api = self.api()?;
        let list = api
            .get("/v1/environments?limit=200")
            .await?
            .expect(200)?
            .json()?;
        for environment in list["environments"].as_array().into_iter().flatten() {
            let id = environment["id"]
                .as_str()
                .context("environment without id")?;
            let reply = api.delete(&format!("/v1/environments/{id}")).await?;
            ensure!(
                [204, 404].contains(&reply.status),
                "destroy {id}: {} {}",
                reply.status,
                reply.text()
            );
        }
        let vms = self.vm_ids().await?;
        ensure!(vms.is_empty(), "VMs without an environment: {vms:?}");
        for dir in [self.fc_dir().join("agent-state/vms"), self.socket_dir()] {
            let files = leftovers::files_about(&dir, "/");
            ensure!(files.is_empty(), "files of no VM: {files:?}");
        }
        Ok(())
    }

    fn socket_dir(&self) -> PathBuf {
        self.dir().join("run")
    }

    fn lay_out(&self) -> Result<()> {
        for dir in [
            self.logs(),
            self.socket_dir(),
            self.fc_dir(),
            self.images_dir(),
        ] {
            std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let kernel = self.fc_dir().join("vmlinux.bin");
        std::os::unix::fs::symlink(self.image.kernel(), &kernel)
            .with_context(|| format!("link {}", kernel.display()))
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

/// 32 random bytes in hex: a token or an encryption key.
fn random_hex() -> String {
    hex::encode(rand::random::<[u8; 32]>())
}
