//! This machine as a host of guests: its agent, that agent's token and disk, what it says of its
//! devices, and a guest that boots.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::process::Command;

use super::system::{self, is_root, program};
use super::{Finding, certificate, socket};

/// How long a guest may take; emulated ones are slow.
const BOOT_SECONDS: u64 = 90;
/// Beyond what an agent's command is told to take, or needs.
const PATIENCE: Duration = Duration::from_secs(30);
const AS_ROOT: &str = "sudo fuse doctor --machine";

/// One of the two agents that a host may have.
#[derive(Debug)]
pub(super) struct Agent {
    /// Its program, and its unit.
    name: &'static str,
    /// Prefix of its variables.
    prefix: &'static str,
    port: u16,
    /// What comes before the names of its checks.
    label: &'static str,
    install: &'static str,
    service: &'static str,
    /// Whether its `check` is asked.
    has_devices: bool,
}

/// The agent of hosts that run guests in Firecracker.
pub(super) const FIRECRACKER: Agent = Agent {
    name: "fc-agent",
    prefix: "FC",
    port: 8090,
    label: "",
    install: "sudo host-agent/firecracker/fc-install.sh",
    service: "sudo host-agent/firecracker/fc-agent.sh install-service",
    has_devices: false,
};

/// The agent of hosts that give GPUs to guests.
pub(super) const QEMU: Agent = Agent {
    name: "qemu-agent",
    prefix: "QEMU",
    port: 8091,
    label: "gpu ",
    install: "sudo host-agent/qemu/qemu-install.sh",
    service: "sudo host-agent/qemu/qemu-agent.sh install-service",
    has_devices: true,
};

/// Where a host agent's things are.
#[derive(Debug)]
pub(super) struct Host {
    agent: &'static Agent,
    dir: PathBuf,
    settings: Vec<(String, String)>,
    /// Whether the settings are there but closed to this user.
    closed: bool,
}

impl Host {
    /// Looks at the agent's directory.
    pub(super) fn at(agent: &'static Agent, dir: &Path) -> Self {
        let (text, closed) = match fs::read_to_string(dir.join(".env")) {
            Ok(text) => (text, false),
            Err(error) => (
                String::new(),
                error.kind() == std::io::ErrorKind::PermissionDenied,
            ),
        };
        let settings = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
            .collect();
        Self {
            agent,
            dir: dir.to_owned(),
            settings,
            closed,
        }
    }

    /// Whether the agent was set up here.
    pub(super) fn is_set_up(&self) -> bool {
        self.closed || self.env_file().exists()
    }

    /// Whether the agent's program is here; a package brings both.
    pub(super) fn has_program(&self) -> bool {
        program(self.agent.name).is_some()
    }

    fn env_file(&self) -> PathBuf {
        self.dir.join(".env")
    }

    /// The name of a check of this agent.
    fn check(&self, name: &str) -> String {
        format!("{}{name}", self.agent.label)
    }

    /// The name of one of the agent's variables.
    fn variable(&self, name: &str) -> String {
        format!("{}_{name}", self.agent.prefix)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        let name = self.variable(name);
        let (_, value) = self.settings.iter().find(|(key, _)| *key == name)?;
        Some(value)
            .filter(|value| !value.is_empty())
            .map(String::as_str)
    }

    fn restart(&self) -> String {
        format!("sudo systemctl restart {}", self.agent.name)
    }

    /// Runs a command of the agent's program that prints JSON, whatever its exit status says.
    ///
    /// # Errors
    /// What to say if it does not.
    async fn ask<T: DeserializeOwned>(
        &self,
        check: &str,
        args: &[&str],
        limit: Duration,
    ) -> Result<T, Finding> {
        let (agent, check) = (self.agent, self.check(check));
        let Some(program) = program(agent.name) else {
            let detail = format!("{} is not installed", agent.name);
            return Err(Finding::failed(check, detail, agent.install));
        };
        let mut command = Command::new(program);
        command
            .args(args)
            .env(self.variable("DIR"), &self.dir)
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let output = match tokio::time::timeout(limit, command.output()).await {
            Ok(Ok(output)) => output.stdout,
            Ok(Err(error)) => {
                return Err(Finding::failed(check, error.to_string(), agent.install));
            }
            Err(_) => {
                let detail = format!("{} {} does not end", agent.name, args.join(" "));
                let fix = format!("journalctl -u {} -n 50", agent.name);
                return Err(Finding::failed(check, detail, fix));
            }
        };
        serde_json::from_slice(&output).map_err(|_| {
            let detail = format!(
                "{} does not know how to {}: it is older than this program",
                agent.name,
                args.first().unwrap_or(&"")
            );
            Finding::failed(check, detail, agent.install)
        })
    }
}

/// Everything about a host; with `boot`, a guest too.
pub(super) async fn look(host: &Host, boot: bool) -> Vec<Finding> {
    let mut findings = vec![system::disk(host.check("disk"), &host.dir)];
    findings.extend(token(host));
    findings.push(agent(host).await);
    findings.extend(listener(host));
    if host.agent.has_devices {
        findings.extend(devices(host).await);
    }
    findings.push(guest(host, boot).await);
    findings
}

fn token(host: &Host) -> Option<Finding> {
    let (path, check) = (host.env_file(), host.check("agent token"));
    if host.closed {
        return Some(Finding::skipped(
            check,
            format!("only root may read {}", path.display()),
            AS_ROOT,
        ));
    }
    if host.setting("AGENT_TOKEN").is_none() {
        let variable = host.variable("AGENT_TOKEN");
        return Some(Finding::failed(
            check,
            format!("{} holds no {variable}", path.display()),
            host.agent.service,
        ));
    }
    let mode = fs::metadata(&path).ok()?.mode() & 0o777;
    Some(if mode & 0o077 == 0 {
        Finding::ok(check, format!("in {}", path.display()))
    } else {
        Finding::failed(
            check,
            format!("others can read {} (mode {mode:o})", path.display()),
            format!("sudo chmod 600 {}", path.display()),
        )
    })
}

async fn agent(host: &Host) -> Finding {
    let check = host.check("agent");
    let port = host
        .setting("AGENT_PORT")
        .and_then(|port| port.parse().ok())
        .unwrap_or(host.agent.port);
    let token = host.setting("AGENT_TOKEN").unwrap_or_default();
    match socket::health(port, token).await {
        Ok(200) => Finding::ok(check, format!("answers on port {port}")),
        // Who speaks TLS alone says so to those who do not.
        Ok(400) if host.setting("AGENT_TLS_CERT").is_some() => {
            Finding::ok(check, format!("answers on port {port}, with TLS"))
        }
        Ok(401) if token.is_empty() => Finding::skipped(
            check,
            format!("answers on port {port}; its token is needed to ask more"),
            if host.closed {
                AS_ROOT
            } else {
                host.agent.service
            },
        ),
        Ok(401) => Finding::failed(
            check,
            format!(
                "the agent on port {port} refuses the {} of {}: it runs with another one",
                host.variable("AGENT_TOKEN"),
                host.env_file().display()
            ),
            host.restart(),
        ),
        Ok(status) => Finding::failed(
            check,
            format!("what listens on port {port} answers HTTP {status}"),
            host.restart(),
        ),
        Err(error) => Finding::failed(
            check,
            format!("nothing usable on port {port}: {error}"),
            host.agent.service,
        ),
    }
}

/// How long the certificate of the agent's listener lasts, if it has one.
fn listener(host: &Host) -> Option<Finding> {
    let (check, variable) = (host.check("certificate"), host.variable("AGENT_TLS_CERT"));
    let file = host.setting("AGENT_TLS_CERT")?;
    let renew = format!("{}   # after renewing {file}", host.restart());
    let text = match fs::read(file) {
        Ok(text) => text,
        Err(error) => {
            return Some(Finding::failed(
                check,
                format!("{variable}: {file}: {error}"),
                renew,
            ));
        }
    };
    let lasts = certificate::of_pem(&text).and_then(|der| {
        certificate::lasts((&check, "the agent's"), &der, Timestamp::now(), &renew)
    });
    let none = || {
        Finding::failed(
            check.clone(),
            format!("{variable}: {file} holds none"),
            renew.clone(),
        )
    };
    Some(lasts.unwrap_or_else(none))
}

/// What the agent itself finds: its VMM, image and firmware, KVM, IOMMU, inventories, MIG layout.
async fn devices(host: &Host) -> Vec<Finding> {
    if host.closed {
        let detail = format!("only root may read {}", host.env_file().display());
        return vec![Finding::skipped(host.check("devices"), detail, AS_ROOT)];
    }
    match host.ask("devices", &["check"], PATIENCE).await {
        Ok(findings) => findings,
        Err(finding) => vec![finding],
    }
}

/// What an agent's probe says.
#[derive(Debug, Deserialize)]
struct Probe {
    ok: bool,
    #[serde(default)]
    boot_ms: Option<u64>,
    #[serde(default)]
    reason: Option<String>,
}

/// The only proof that guests run here is one that does.
async fn guest(host: &Host, boot: bool) -> Finding {
    let check = host.check("guest");
    // The other agent emulates where there is none.
    let needs_kvm = !host.agent.has_devices && host.setting("BIN").is_none();
    if needs_kvm && !Path::new("/dev/kvm").exists() {
        return Finding::failed(
            "kvm",
            "/dev/kvm is missing: no virtualisation here, or its module is not loaded",
            "sudo modprobe -a kvm_intel kvm_amd",
        );
    }
    if !host.has_program() {
        let detail = format!("{} is not installed", host.agent.name);
        return Finding::failed(check, detail, host.agent.install);
    }
    if !boot {
        return Finding::skipped(check, "not asked to boot one", AS_ROOT);
    }
    if !is_root() {
        return Finding::skipped(check, "only root may boot one", AS_ROOT);
    }
    let seconds = BOOT_SECONDS.to_string();
    let limit = Duration::from_secs(BOOT_SECONDS) + PATIENCE;
    let args = ["probe", "--timeout", &seconds];
    match host.ask("guest", &args, limit).await {
        Ok(Probe {
            ok: true, boot_ms, ..
        }) => Finding::ok(
            check,
            format!(
                "one booted and answered in {} ms",
                boot_ms.unwrap_or_default()
            ),
        ),
        Ok(Probe { reason, .. }) => Finding::failed(
            check,
            format!("none boots: {}", reason.unwrap_or_default()),
            host.agent.install,
        ),
        Err(finding) => finding,
    }
}
