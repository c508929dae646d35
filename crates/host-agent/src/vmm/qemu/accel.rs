//! KVM or emulation: what a guest that boots proves.
//!
//! A node `/dev/kvm` that can be opened says little: on some machines a guest starts and then hangs.
//! So a probe guest is booted once per boot of the host, and the verdict is kept.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuse_qemu::Accelerator;
use serde::{Deserialize, Serialize};

use super::{Options, Qemu};
use crate::config::{AcceleratorChoice, Config, QemuSettings};
use crate::probe;

/// The node.
const KVM: &str = "/dev/kvm";
/// How long the probe guest may take: many times what KVM needs.
const PROBE_LIMIT: Duration = Duration::from_secs(30);
/// File of the state directory that keeps the verdict.
const VERDICT: &str = "accelerator.json";

/// What a probe has shown, and for what it holds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Verdict {
    /// The host's kernel id of its boot.
    boot_id: String,
    /// Program of the VMM.
    vmm: PathBuf,
    kvm: bool,
}

/// Decides for a host; `settings` are those of `config`.
pub async fn choose(config: &Config, settings: &QemuSettings) -> Accelerator {
    match settings.accelerator {
        AcceleratorChoice::Kvm => return Accelerator::Kvm,
        AcceleratorChoice::Tcg => return Accelerator::Tcg,
        AcceleratorChoice::Auto => {}
    }
    if let Err(error) = can_open(Path::new(KVM)) {
        emulated(&format!("{KVM} cannot be opened: {error}"));
        return Accelerator::Tcg;
    }
    let file = verdict_file(config);
    let kvm = match remembered(&file, config) {
        Some(kvm) => kvm,
        None => boots_with_kvm(config, settings, &file).await,
    };
    if kvm {
        return Accelerator::Kvm;
    }
    emulated(&format!(
        "{KVM} is there, but a guest does not boot with it"
    ));
    Accelerator::Tcg
}

/// Whether a guest booted with KVM since the host started, as far as one was asked.
#[must_use]
pub fn verdict_of_this_boot(config: &Config) -> Option<bool> {
    remembered(&verdict_file(config), config)
}

/// Where the verdict is kept.
#[must_use]
pub fn verdict_file(config: &Config) -> PathBuf {
    config.paths.state.join(VERDICT)
}

/// Whether this host has KVM and this user may use it, which is not to say that it works.
#[must_use]
pub fn can_open_kvm() -> bool {
    can_open(Path::new(KVM)).is_ok()
}

fn can_open(node: &Path) -> std::io::Result<()> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(node)
        .map(drop)
}

fn emulated(reason: &str) {
    tracing::warn!(
        reason,
        "guests run on an emulated CPU, many times slower than this host's; load the kernel's KVM \
         module (kvm_intel or kvm_amd) and switch virtualization on in the firmware. \
         QEMU_ACCELERATOR=tcg says that this is wanted"
    );
}

async fn boots_with_kvm(config: &Config, settings: &QemuSettings, file: &Path) -> bool {
    tracing::info!("booting a guest to see whether KVM works here");
    let options = Options {
        accelerator: Accelerator::Kvm,
        firmware: settings.firmware.clone(),
        run_as: settings.run_as,
    };
    let (program, sockets) = (config.paths.vmm.clone(), config.paths.sockets.clone());
    let vmm = Arc::new(Qemu::new(program, sockets, options));
    let report = probe::probe(config, vmm.as_ref(), PROBE_LIMIT).await;
    if let Some(reason) = &report.reason {
        tracing::warn!(reason, "the guest did not boot");
    }
    if let Some(verdict) = verdict(config, report.ok) {
        let text = serde_json::to_vec(&verdict).unwrap_or_default();
        let made = std::fs::create_dir_all(&config.paths.state);
        // Losing it costs the next start another probe.
        if let Err(error) = made.and_then(|()| std::fs::write(file, text)) {
            tracing::debug!(%error, "the verdict is not kept");
        }
    }
    report.ok
}

fn verdict(config: &Config, kvm: bool) -> Option<Verdict> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(Verdict {
        boot_id: boot_id.trim().to_owned(),
        vmm: config.paths.vmm.clone(),
        kvm,
    })
}

fn remembered(file: &Path, config: &Config) -> Option<bool> {
    let kept: Verdict = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    (verdict(config, kept.kvm)? == kept).then_some(kept.kvm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::QEMU;

    fn config(dir: &Path, vmm: &str) -> Config {
        Config::from_env(QEMU, |name| match name {
            "QEMU_DIR" => Some(dir.display().to_string()),
            "QEMU_AGENT_TOKEN" => Some("t".to_owned()),
            "QEMU_BIN" => Some(vmm.to_owned()),
            _ => None,
        })
        .unwrap()
    }

    #[tokio::test]
    async fn a_choice_needs_no_probe() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), "/nowhere/qemu");
        let mut settings = config.qemu.clone().unwrap();
        for (choice, want) in [
            (AcceleratorChoice::Kvm, Accelerator::Kvm),
            (AcceleratorChoice::Tcg, Accelerator::Tcg),
        ] {
            settings.accelerator = choice;
            assert_eq!(choose(&config, &settings).await, want);
        }
    }

    #[test]
    fn a_verdict_holds_for_this_boot_and_this_program() {
        let dir = tempfile::tempdir().unwrap();
        let here = config(dir.path(), "/usr/bin/qemu");
        let file = dir.path().join(VERDICT);
        assert_eq!(remembered(&file, &here), None);
        let kept = verdict(&here, false).unwrap();
        std::fs::write(&file, serde_json::to_vec(&kept).unwrap()).unwrap();
        assert_eq!(remembered(&file, &here), Some(false));
        assert_eq!(remembered(&file, &config(dir.path(), "/opt/qemu")), None);
        let other = Verdict {
            boot_id: "another".into(),
            ..kept
        };
        std::fs::write(&file, serde_json::to_vec(&other).unwrap()).unwrap();
        assert_eq!(remembered(&file, &here), None);
        std::fs::write(&file, b"{").unwrap();
        assert_eq!(remembered(&file, &here), None);
    }
}
