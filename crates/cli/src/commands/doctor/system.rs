//! This machine, whichever agent is on it: devices, programs, disk, clock.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::Finding;

/// Bound of a program that only reports.
const PATIENCE: Duration = Duration::from_secs(10);
/// Free space below which creates are about to be refused, in percent and GiB.
const FREE_PERCENT: u64 = 20;
const FREE_GIB: u64 = 5;

/// What every host needs.
pub(super) async fn look() -> Vec<Finding> {
    vec![
        device("tap", "/dev/net/tun", "sudo modprobe tun"),
        nft().await,
        cgroups(),
        clock().await,
    ]
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn device(check: &str, path: &str, fix: &str) -> Finding {
    if Path::new(path).exists() {
        Finding::ok(check, format!("{path} is there"))
    } else {
        Finding::failed(check, format!("{path} is missing"), fix)
    }
}

/// A program in one of the places where hosts have them, or on `PATH`.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    let fixed = [
        "/usr/local/bin",
        "/usr/bin",
        "/usr/local/sbin",
        "/usr/sbin",
        "/sbin",
    ];
    let path = std::env::var_os("PATH").unwrap_or_default();
    fixed
        .iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
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

/// The file system of an agent's directory.
pub(super) fn disk(check: String, dir: &Path) -> Finding {
    // The directory may not be there yet; the file system that it will be on is.
    let place = dir
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"));
    let stat = match rustix::fs::statvfs(place) {
        Ok(stat) => stat,
        Err(error) => {
            return Finding::failed(
                check,
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
        return Finding::warning(check, detail, fix);
    }
    Finding::ok(check, detail)
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
