//! A machine of a fleet: a network namespace with an agent and guests of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::authority::Authority;
use anyhow::{Context, Result, ensure};
use fuse_testkit::outside::Outside;
use fuse_testkit::{Api, Daemon, Fuse, Slot, Stack, leftovers, until};
use serde_json::Value;

/// Longest time until a host is known to be gone or back: a check each second, which may wait 5 s.
pub(crate) const NOTICED: Duration = Duration::from_secs(30);

/// Namespace, agent, state directory.
pub(crate) struct Machine {
    name: &'static str,
    slot: Slot,
    network: Outside,
    agent: Option<Daemon>,
    token: String,
    base: PathBuf,
    /// Its agent speaks TLS when these are not empty.
    certificate: Vec<(String, String)>,
}

/// Two machines, which are removed whatever becomes of the test.
pub(crate) async fn between(
    mut east: Machine,
    west: Result<Machine>,
    test: impl AsyncFnOnce(&mut Machine, &Machine) -> Result<()>,
) -> Result<()> {
    let outcome = match west {
        Ok(mut west) => {
            let outcome = test(&mut east, &west).await;
            west.remove().await.and(outcome)
        }
        Err(error) => Err(error),
    };
    east.remove().await.and(outcome)
}

impl Machine {
    pub(crate) fn start(name: &'static str, stack: &Stack) -> Result<Self> {
        let token = stack.agent_token().to_owned();
        Self::with(name, stack, token, stack.image().base())
    }

    /// With an agent that speaks TLS alone, and trusts other agents by the same authority.
    pub(crate) fn secured(
        name: &'static str,
        stack: &Stack,
        authority: &Authority,
    ) -> Result<Self> {
        let mut machine = Self::new(name, stack)?;
        let dir = machine.slot.dir();
        machine.certificate = authority.agent_env(&machine.network.ip.to_string(), &dir)?;
        machine.boot(stack)?;
        Ok(machine)
    }

    /// With a token and a base image of its own.
    pub(crate) fn with(
        name: &'static str,
        stack: &Stack,
        token: String,
        base: PathBuf,
    ) -> Result<Self> {
        let mut machine = Self::new(name, stack)?;
        (machine.token, machine.base) = (token, base);
        machine.boot(stack)?;
        Ok(machine)
    }

    /// One that is off.
    fn new(name: &'static str, stack: &Stack) -> Result<Self> {
        let slot = Slot::claim()?;
        let network = Outside::create(&slot)?;
        std::fs::create_dir_all(slot.dir().join("fc"))?;
        let kernel = slot.dir().join("fc/vmlinux.bin");
        std::os::unix::fs::symlink(stack.image().kernel(), kernel)?;
        Ok(Self {
            name,
            slot,
            network,
            agent: None,
            token: stack.agent_token().to_owned(),
            base: stack.image().base(),
            certificate: Vec::new(),
        })
    }

    /// Starts the agent (again).
    pub(crate) fn boot(&mut self, stack: &Stack) -> Result<()> {
        let (bins, image, dir) = (stack.bins(), stack.image(), self.slot.dir());
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let mut env = self.slot.agent_env();
        env.extend([
            ("FC_DIR".to_owned(), text(dir.join("fc"))),
            ("FC_SOCK_DIR".to_owned(), text(dir.join("run"))),
            ("FC_BIN".to_owned(), text(bins.path("fc-emulator")?)),
            ("FC_INITRD".to_owned(), text(image.initramfs())),
            ("BASE_ROOTFS".to_owned(), text(self.base.clone())),
            ("FC_AGENT_TOKEN".to_owned(), self.token.clone()),
        ]);
        env.extend(self.certificate.iter().cloned());
        let (namespace, agent) = (self.slot.namespace(), text(bins.path("fc-agent")?));
        let args = ["netns", "exec", &namespace, &agent, "serve"];
        let log = Self::log_path(self.name, &stack.logs());
        let ip = PathBuf::from("ip");
        self.agent = Some(Daemon::spawn("fc-agent", &ip, &args, &env, &log)?);
        Ok(())
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.certificate.is_empty() {
            "http"
        } else {
            "https"
        };
        format!("{scheme}://{}:{}", self.network.ip, self.slot.agent_port())
    }

    pub(crate) async fn register(&self, fuse: &Fuse, region: &str, label: &str) -> Result<()> {
        let (url, label) = (self.url(), format!("disk={label}"));
        let token = &self.token;
        let mut args = vec!["host", "register", self.name, "--url", &url];
        args.extend(["--token", token, "--region", region, "--label", &label]);
        args.extend(["--max-vms", "4", "--cpus", "8"]);
        // The agent of the machine may still be starting.
        let register = || async { fuse.ok(&args).await };
        let said = until("the agent answers", NOTICED, register).await?.stderr;
        ensure!(said.starts_with("registered host"), "{said}");
        Ok(())
    }

    /// The network cable.
    pub(crate) fn cable(&self, state: &str) -> Result<()> {
        let link = self.slot.outside_link();
        let done = std::process::Command::new("ip")
            .args(["link", "set", &link, state])
            .status()?;
        ensure!(done.success(), "ip link set {link} {state}");
        Ok(())
    }

    /// Loses one packet of `one_in` on the way to it and back, until [`Self::lose_nothing`].
    pub(crate) fn lose(&self, one_in: u32) -> Result<()> {
        self.network.lose(one_in)
    }

    /// Ends that; how many packets were lost.
    pub(crate) fn lose_nothing(&self) -> Result<u64> {
        self.network.lose_nothing()
    }

    /// Its agent.
    pub(crate) fn agent_api(&self) -> Result<Api> {
        Api::new(self.url(), Some(&self.token))
    }

    /// Power loss: the agent and all its guests at once.
    pub(crate) async fn lose_power(&mut self) -> Result<()> {
        let agent = self.agent.take();
        agent.context("the agent runs")?.kill().await?;
        let dir = format!("{}/", self.slot.dir().display());
        for process in leftovers::processes_about(&dir) {
            // One that has ended by itself meanwhile is as dead.
            let _gone = std::process::Command::new("kill")
                .args(["-9", &process.pid.to_string()])
                .output();
        }
        Ok(())
    }

    /// The end of the agent alone: its guests run on.
    pub(crate) async fn kill_agent(&mut self) -> Result<()> {
        let agent = self.agent.take();
        agent.context("the agent runs")?.kill().await
    }

    /// Gives it an image under the name that the file has.
    pub(crate) fn give_image(&self, file: &Path) -> Result<()> {
        let images = self.slot.dir().join("fc/images");
        std::fs::create_dir_all(&images)?;
        let name = file.file_name().context("an image has a name")?;
        std::fs::hard_link(file, images.join(name))?;
        Ok(())
    }

    /// The first port that it publishes of `environment`, as others reach it.
    pub(crate) fn published(&self, environment: &Value) -> Result<Api> {
        let url = environment["endpoints"][0]["url"].as_str();
        let (_, port) = url
            .and_then(|url| url.rsplit_once(':'))
            .with_context(|| format!("nothing is published: {environment}"))?;
        Api::new(format!("http://{}:{port}", self.network.ip), None)
    }

    /// State of its agent.
    pub(crate) fn state(&self) -> PathBuf {
        self.slot.dir().join("fc/agent-state")
    }

    /// What its agent has logged.
    pub(crate) fn log(&self, stack: &Stack) -> Result<String> {
        let log = Self::log_path(self.name, &stack.logs());
        Ok(std::fs::read_to_string(log)?)
    }

    fn log_path(name: &str, logs: &Path) -> PathBuf {
        logs.join(format!("fc-agent-{name}.log"))
    }

    /// Takes it away with everything on it.
    pub(crate) async fn remove(&mut self) -> Result<()> {
        self.lose_power().await.ok();
        leftovers::purge(&self.slot)
    }
}
