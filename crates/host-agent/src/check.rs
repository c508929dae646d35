//! `check`: what is wrong with this host, each finding with the command that mends it. It looks and
//! changes nothing; `fuse doctor` prints it beside its own findings.
//!
//! Booting a guest is the probe's part ([`crate::probe`]).

use std::path::Path;

use serde::Serialize;

use crate::config::{AcceleratorChoice, Config, QemuSettings};
use crate::gpu;
use crate::preflight::{self, PreflightError};
use crate::vmm::qemu::accel;

/// Puts QEMU, the agent and the image onto a host.
const INSTALL_QEMU: &str = "sudo host-agent/qemu/qemu-install.sh";
/// The same with Firecracker.
const INSTALL_FIRECRACKER: &str = "sudo host-agent/firecracker/fc-install.sh";
const LOAD_KVM: &str = "sudo modprobe -a kvm_intel kvm_amd";

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, but not for ever or not well.
    Warning,
    /// Does not work.
    Failed,
    /// Could not be looked at.
    Skipped,
}

/// One thing that was looked at, in the form of `fuse doctor -o json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name.
    pub check: String,
    /// How it is.
    pub status: Status,
    /// What was seen.
    pub detail: String,
    /// The command that mends it; absent when nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    pub(crate) fn ok(check: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            status: Status::Ok,
            detail: detail.into(),
            fix: None,
        }
    }

    pub(crate) fn wrong(
        check: impl Into<String>,
        status: Status,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            check: check.into(),
            status,
            detail: detail.into(),
            fix: Some(fix.into()),
        }
    }

    pub(crate) fn failed(
        check: impl Into<String>,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::wrong(check, Status::Failed, detail, fix)
    }

    pub(crate) fn warning(
        check: impl Into<String>,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::wrong(check, Status::Warning, detail, fix)
    }
}

/// Everything about the host that `config` is of.
pub async fn look(config: &Config) -> Vec<Finding> {
    let mut findings = vec![
        outcome("vmm", "is there", preflight::programs(config), config),
        outcome("image", "is there", preflight::image(config), config),
    ];
    if let Some(qemu) = &config.qemu {
        let used = match qemu.firmware {
            Some(_) => "is there and starts the kernel",
            None => "not used: guests enter the kernel directly",
        };
        let firmware = preflight::firmware(config);
        findings.push(outcome("firmware", used, firmware, config));
        findings.push(kvm(config, qemu));
        findings.extend(gpu::check(&qemu.gpus).await);
    }
    findings
}

fn outcome(check: &str, good: &str, found: Result<(), PreflightError>, config: &Config) -> Finding {
    match found {
        Ok(()) => Finding::ok(check, good),
        Err(error) => Finding::failed(check, error.to_string(), mends(&error, config)),
    }
}

/// The command behind the words of a missing part.
fn mends(error: &PreflightError, config: &Config) -> String {
    match error {
        PreflightError::Firmware { .. } => "sudo apt-get install -y ovmf".to_owned(),
        PreflightError::FirmwareKernel { path, app, .. } => {
            let dir = path.parent().unwrap_or(Path::new("."));
            format!("sudo {app} image build --refresh --out {}", dir.display())
        }
        _ if config.qemu.is_some() => INSTALL_QEMU.to_owned(),
        _ => INSTALL_FIRECRACKER.to_owned(),
    }
}

/// What guests are executed by, as far as it is known without booting one.
fn kvm(config: &Config, qemu: &QemuSettings) -> Finding {
    let check = "kvm";
    if qemu.accelerator == AcceleratorChoice::Tcg {
        let detail = "not used: QEMU_ACCELERATOR=tcg asks for an emulated CPU";
        return Finding::ok(check, detail);
    }
    if !accel::can_open_kvm() {
        let detail =
            "/dev/kvm cannot be opened, so guests run on an emulated CPU, many times slower";
        return match qemu.accelerator {
            AcceleratorChoice::Kvm => {
                let detail = "/dev/kvm cannot be opened and QEMU_ACCELERATOR=kvm asks for it: no guest starts";
                Finding::failed(check, detail, LOAD_KVM)
            }
            AcceleratorChoice::Auto | AcceleratorChoice::Tcg => {
                Finding::warning(check, detail, LOAD_KVM)
            }
        };
    }
    match accel::verdict_of_this_boot(config) {
        Some(true) => Finding::ok(check, "a guest booted with it"),
        Some(false) => Finding::warning(
            check,
            "a guest does not boot with it, so all run on an emulated CPU; virtualization may be off in \
             the firmware, or not passed on to this machine",
            format!(
                "sudo rm {} && sudo systemctl restart qemu-agent   # asks a guest again",
                accel::verdict_file(config).display()
            ),
        ),
        None => Finding::wrong(
            check,
            Status::Skipped,
            "/dev/kvm can be opened; the agent has not booted a guest with it since the host started",
            "sudo systemctl restart qemu-agent   # asks a guest; those that run go on",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FIRECRACKER, QEMU};

    fn config(dir: &Path, more: &'static [(&'static str, &'static str)]) -> Config {
        let dir = dir.display().to_string();
        Config::from_env(QEMU, |name| match name {
            "QEMU_DIR" => Some(dir.clone()),
            "FUSE_SYSFS" => Some(format!("{dir}/sys")),
            "QEMU_BIN" => Some(format!("{dir}/qemu")),
            "QEMU_AGENT_TOKEN" => Some("t".to_owned()),
            name => {
                let found = more.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            }
        })
        .unwrap()
    }

    async fn named(config: &Config, check: &str) -> Finding {
        let found = look(config).await;
        let one = found.iter().find(|finding| finding.check == check);
        one.unwrap_or_else(|| panic!("no {check} in {found:?}"))
            .clone()
    }

    #[tokio::test]
    async fn an_empty_host_is_told_what_brings_each_part() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), &[("OVMF_CODE", "/nowhere/OVMF_CODE.fd")]);
        for (check, fix) in [
            ("vmm", INSTALL_QEMU),
            ("image", INSTALL_QEMU),
            ("firmware", "sudo apt-get install -y ovmf"),
            ("iommu", "intel_iommu=on"),
        ] {
            let finding = named(&config, check).await;
            assert_eq!(finding.status, Status::Failed, "{finding:?}");
            assert!(finding.fix.as_ref().unwrap().contains(fix), "{finding:?}");
        }
        for finding in look(&config).await {
            assert_eq!(finding.status == Status::Ok, finding.fix.is_none());
        }
    }

    #[tokio::test]
    async fn an_emulated_cpu_that_is_wanted_is_no_finding() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), &[("QEMU_ACCELERATOR", "tcg")]);
        let finding = named(&config, "kvm").await;
        assert_eq!(finding.status, Status::Ok, "{finding:?}");
        let finding = named(&config, "firmware").await;
        assert!(finding.detail.starts_with("not used"), "{finding:?}");
    }

    #[tokio::test]
    async fn the_other_agent_has_no_gpus_to_look_at() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::from_env(FIRECRACKER, |name| match name {
            "FC_DIR" => Some(dir.path().display().to_string()),
            "FC_BIN" => Some("/nowhere/firecracker".to_owned()),
            "FC_AGENT_TOKEN" => Some("t".to_owned()),
            _ => None,
        })
        .unwrap();
        let found = look(&config).await;
        let checks: Vec<_> = found.iter().map(|f| f.check.as_str()).collect();
        assert_eq!(checks, ["vmm", "image"]);
        assert_eq!(found[0].fix.as_deref(), Some(INSTALL_FIRECRACKER));
    }
}
