//! This machine as a host of guests: devices, programs, disk, clock, token, agent, and a guest that
//! boots.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;

use super::{Finding, socket};

/// Bound of a program that only reports.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a guest may take; emulated ones are slow.
const BOOT_SECONDS: u64 = 90;
/// Free space below which creates are about to be refused, in percent and GiB.
const FREE_PERCENT: u64 = 20;
const FREE_GIB: u64 = 5;
const INSTALL: &str = "sudo host-agent/firecracker/fc-install.sh";
const SERVICE: &str = "sudo host-agent/firecracker/fc-agent.sh install-service";

/// Where a host agent's things are.
#[derive(Debug)]
pub(super) struct Host {
    dir: PathBuf,
    settings: Vec<(String, String)>,
    /// Whether the settings are there but closed to this user.
    closed: bool,
}

impl Host {
    /// Looks at the agent's directory.
    pub(super) fn at(dir: &Path) -> Self {
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
            dir: dir.to_owned(),
            settings,
            closed,
        }
    }

    /// Whether this machine is a host, or was going to be one.
    pub(super) fn is_one(&self) -> bool {
        self.closed || self.dir.join(".env").exists() || program("fc-agent").is_some()
    }

    fn setting(&self, name: &str) -> Option<&str> {
        let (_, value) = self.settings.iter().find(|(key, _)| key == name)?;
        Some(value)
            .filter(|value| !value.is_empty())
            .map(String::as_str)
    }
}

/// Everything about this machine; with `boot`, a guest too.
pub(super) async fn look(host: &Host, boot: bool) -> Vec<Finding> {
    let mut findings = vec![
        device("tap", "/dev/net/tun", "sudo modprobe tun"),
        nft().await,
        cgroups(),
        disk(&host.dir),
        clock().await,
    ];
    findings.extend(token(host));
    findings.push(agent(host).await);
    findings.push(guest(host, boot).await);
    findings
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn device(check: &str, path: &str, fix: &str) -> Finding {
    if Path::new(path).exists() {
        Finding::ok(check, format!("{path} is there"))
    } else {
        Finding::failed(check, format!("{path} is missing"), fix)
    }
}

/// A program in one of the places where hosts have them.
fn program(name: &str) -> Option<PathBuf> {
    [
        "/usr/local/bin",
        "/usr/bin",
        "/usr/local/sbin",
        "/usr/sbin",
        "/sbin",
    ]
    .iter()
    .map(|dir| Path::new(dir).join(name))
    .find(|path| path.is_file())
}

/// Runs a program that only reports. Its standard output, or why there is none.
async fn ask(program: &Path, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .map_err(|_| format!("{} does not end", program.display()))?
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

async fn nft() -> Finding {
    let Some(nft) = program("nft") else {
        return Finding::failed(
            "nftables",
            "nft is not installed",
            "sudo apt-get install -y nftables",
        );
    };
    if !is_root() {
        return Finding::skipped(
            "nftables",
            "only root may read the rules",
            "sudo fuse doctor --machine",
        );
    }
    match ask(&nft, &["list", "tables"]).await {
        Ok(_) => Finding::ok("nftables", "rules can be read"),
        Err(error) => Finding::failed("nftables", error, "sudo modprobe nf_tables"),
    }
}

fn cgroups() -> Finding {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Finding::ok("cgroups", "version 2");
    }
    Finding::warning(
        "cgroups",
        "this machine does not use version 2 alone, so systemd cannot account for guests",
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&systemd.unified_cgroup_hierarchy=1 /' /etc/default/grub && sudo update-grub && sudo reboot",
    )
}

fn disk(dir: &Path) -> Finding {
    // The directory may not be there yet; the file system that it will be on is.
    let place = dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    let stat = match rustix::fs::statvfs(place) {
        Ok(stat) => stat,
        Err(error) => {
            return Finding::failed(
                "disk",
                error.to_string(),
                format!("df -h {}", place.display()),
            );
        }
    };
    let gib = |blocks: u64| blocks.saturating_mul(stat.f_frsize) >> 30;
    let (free, all) = (gib(stat.f_bavail), gib(stat.f_blocks));
    let detail = format!("{free} of {all} GiB free in {}", place.display());
    if free < FREE_GIB
        || stat.f_bavail.saturating_mul(100) < stat.f_blocks.saturating_mul(FREE_PERCENT)
    {
        let fix = "fuse environment list --all-pages   # destroy what nobody needs: fuse environment destroy <id>";
        return Finding::warning("disk", detail, fix);
    }
    Finding::ok("disk", detail)
}

async fn clock() -> Finding {
    let fix = "sudo timedatectl set-ntp true";
    let Some(timedatectl) = program("timedatectl") else {
        return Finding::skipped(
            "clock",
            "timedatectl is not installed",
            "sudo apt-get install -y systemd-timesyncd",
        );
    };
    match ask(
        &timedatectl,
        &["show", "--property=NTPSynchronized", "--value"],
    )
    .await
    {
        Ok(answer) if answer == "yes" => Finding::ok("clock", "synchronised"),
        Ok(_) => Finding::warning("clock", "not synchronised with a time server", fix),
        Err(error) => Finding::skipped("clock", error, fix),
    }
}

fn token(host: &Host) -> Option<Finding> {
    let path = host.dir.join(".env");
    if host.closed {
        return Some(Finding::skipped(
            "agent token",
            format!("only root may read {}", path.display()),
            "sudo fuse doctor --machine",
        ));
    }
    if host.setting("FC_AGENT_TOKEN").is_none() {
        return Some(Finding::failed(
            "agent token",
            format!("{} holds no FC_AGENT_TOKEN", path.display()),
            SERVICE,
        ));
    }
    let mode = fs::metadata(&path).ok()?.mode() & 0o777;
    Some(if mode & 0o077 == 0 {
        Finding::ok("agent token", format!("in {}", path.display()))
    } else {
        Finding::failed(
            "agent token",
            format!("others can read {} (mode {mode:o})", path.display()),
            format!("sudo chmod 600 {}", path.display()),
        )
    })
}

async fn agent(host: &Host) -> Finding {
    let port = host
        .setting("FC_AGENT_PORT")
        .and_then(|port| port.parse().ok())
        .unwrap_or(8090);
    let token = host.setting("FC_AGENT_TOKEN").unwrap_or_default();
    match socket::health(port, token).await {
        Ok(200) => Finding::ok("agent", format!("answers on port {port}")),
        Ok(401) if token.is_empty() => Finding::skipped(
            "agent",
            format!("answers on port {port}; its token is needed to ask more"),
            if host.closed {
                "sudo fuse doctor --machine"
            } else {
                SERVICE
            },
        ),
        Ok(401) => Finding::failed(
            "agent",
            format!(
                "the agent on port {port} refuses the FC_AGENT_TOKEN of {}: it runs with another one",
                host.dir.join(".env").display()
            ),
            "sudo systemctl restart fc-agent",
        ),
        Ok(status) => Finding::failed(
            "agent",
            format!("what listens on port {port} answers HTTP {status}"),
            "sudo systemctl restart fc-agent",
        ),
        Err(error) => Finding::failed(
            "agent",
            format!("nothing usable on port {port}: {error}"),
            SERVICE,
        ),
    }
}

/// What `fc-agent probe` says.
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
    if !Path::new("/dev/kvm").exists() && host.setting("FC_BIN").is_none() {
        return Finding::failed(
            "kvm",
            "/dev/kvm is missing: no virtualisation here, or its module is not loaded",
            "sudo modprobe -a kvm_intel kvm_amd",
        );
    }
    let Some(agent) = program("fc-agent") else {
        return Finding::failed("guest", "fc-agent is not installed", INSTALL);
    };
    if !boot {
        return Finding::skipped(
            "guest",
            "not asked to boot one",
            "sudo fuse doctor --machine",
        );
    }
    if !is_root() {
        return Finding::skipped(
            "guest",
            "only root may boot one",
            "sudo fuse doctor --machine",
        );
    }
    let mut command = Command::new(agent);
    command
        .args(["probe", "--timeout", &BOOT_SECONDS.to_string()])
        .env("FC_DIR", &host.dir)
        .envs(host.settings.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let limit = Duration::from_secs(BOOT_SECONDS + 30);
    let output = match tokio::time::timeout(limit, command.output()).await {
        Ok(Ok(output)) => output.stdout,
        Ok(Err(error)) => return Finding::failed("guest", error.to_string(), INSTALL),
        Err(_) => {
            return Finding::failed(
                "guest",
                "the probe does not end",
                "journalctl -u fc-agent -n 50",
            );
        }
    };
    match serde_json::from_slice::<Probe>(&output) {
        Ok(Probe {
            ok: true, boot_ms, ..
        }) => Finding::ok(
            "guest",
            format!(
                "one booted and answered in {} ms",
                boot_ms.unwrap_or_default()
            ),
        ),
        Ok(Probe { reason, .. }) => Finding::failed(
            "guest",
            format!("none boots: {}", reason.unwrap_or_default()),
            INSTALL,
        ),
        Err(_) => Finding::failed(
            "guest",
            "fc-agent does not know how to probe: it is older than this program",
            INSTALL,
        ),
    }
}
