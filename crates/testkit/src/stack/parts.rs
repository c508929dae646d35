//! The stack itself: what it is made of, where its parts are, how it starts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::PoisonError;

use anyhow::{Context, Result};
use serde_json::json;
use tokio::sync::Mutex;

use crate::api::Api;
use crate::bins::{Bins, Image, Release};
use crate::cli::Fuse;
use crate::daemon::Daemon;
use crate::slot::Slot;

/// Id under which the stack's agent is registered.
const HOST_ID: &str = "h1";

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
    /// Another build than the one under test, for all of its parts.
    pub release: Option<Release>,
}

/// What runs and can be of different builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The orchestrator.
    Orchestrator,
    /// The host agent and its VMM.
    Agent,
    /// What guests boot, their agent with it.
    Image,
}

/// A running stack.
#[derive(Debug)]
pub struct Stack {
    pub(super) slot: Slot,
    pub(super) release: Release,
    /// Parts that are of another build.
    pub(super) moved: std::sync::Mutex<BTreeMap<Part, Release>>,
    pub(super) options: StackOptions,
    pub(super) token: String,
    pub(super) agent_token: String,
    pub(super) encryption_key: String,
    pub(super) orchestrator: Mutex<Option<Daemon>>,
    pub(super) agent: Mutex<Option<Daemon>>,
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
            release: match &options.release {
                Some(release) => release.clone(),
                None => Release::current()?,
            },
            moved: std::sync::Mutex::default(),
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
        // More CPUs than a small machine has: a guest that a failed test leaves must not fail the others.
        let capacity = json!({"vm_count": 32, "cpus": 32});
        let body = json!({"id": HOST_ID, "url": stack.agent_url(), "token": stack.agent_token, "capacity": capacity});
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
        &self.release.bins
    }

    /// The image its guests boot.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.release.image
    }

    /// Takes `part` from another build when it starts the next time; the image, when the agent does.
    pub fn move_to(&self, part: Part, release: &Release) {
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        moved.insert(part, release.clone());
    }

    /// The build that `part` is taken from.
    pub(super) fn release_of(&self, part: Part) -> Release {
        let moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        moved.get(&part).unwrap_or(&self.release).clone()
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
        self.fuse_of(name, &self.release).await
    }

    /// The same with the CLI of another build.
    ///
    /// # Errors
    /// As [`Self::fuse`].
    pub async fn fuse_of(&self, name: &str, release: &Release) -> Result<Fuse> {
        let fuse = Fuse::new(&release.bins, &self.dir().join("home").join(name))?;
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

    pub(super) fn socket_dir(&self) -> PathBuf {
        self.dir().join("run")
    }

    fn lay_out(&self) -> Result<()> {
        // The socket directory is left to the agent, which wants it private.
        for dir in [self.logs(), self.fc_dir(), self.images_dir()] {
            std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        Ok(())
    }

    /// Lets the agent find the kernel of `image`.
    pub(super) fn link_kernel(&self, image: &Image) -> Result<()> {
        let kernel = self.fc_dir().join("vmlinux.bin");
        if kernel.is_symlink() {
            std::fs::remove_file(&kernel)?;
        }
        std::os::unix::fs::symlink(image.kernel(), &kernel)
            .with_context(|| format!("link {}", kernel.display()))
    }
}

/// 32 random bytes in hex: a token or an encryption key.
fn random_hex() -> String {
    hex::encode(rand::random::<[u8; 32]>())
}
