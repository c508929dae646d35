//! Settings of hosts that give devices to their guests.

use std::path::{Path, PathBuf};

use super::ConfigError;
use super::env::{Env, invalid};

/// Who QEMU becomes once it has opened its devices: nobody.
const NOBODY: &str = "65534:65534";

/// Settings of QEMU and of the devices.
#[derive(Debug, Clone)]
pub struct QemuSettings {
    /// What executes the guests.
    pub accelerator: AcceleratorChoice,
    /// UEFI firmware, if guests begin with it.
    pub firmware: Option<PathBuf>,
    /// User and group that QEMU becomes; `None` stays root.
    pub run_as: Option<(u32, u32)>,
    /// The devices.
    pub gpus: GpuSettings,
}

/// What executes the guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceleratorChoice {
    /// KVM if a guest boots with it.
    Auto,
    /// KVM whatever happens.
    Kvm,
    /// An emulated CPU.
    Tcg,
}

/// Where the devices are known from.
#[derive(Debug, Clone)]
pub struct GpuSettings {
    /// Groups that are given out whole.
    pub vfio_inventory: PathBuf,
    /// Instances of partitioned cards.
    pub mig_inventory: PathBuf,
    /// The layout of partitioned cards, which `qemu-mig-setup.sh` keeps.
    pub mig_layout: PathBuf,
    /// The kernel's view of devices.
    pub sysfs: PathBuf,
    /// The vendor's tool.
    pub nvidia_smi: PathBuf,
    /// What applies the layout of partitioned cards again after a VM is gone, if the agent is to.
    pub mig_setup: Option<PathBuf>,
}

pub(super) fn read(env: &Env<'_>) -> Result<QemuSettings, ConfigError> {
    let choice = env.own("ACCELERATOR").unwrap_or_else(|| "auto".to_owned());
    let accelerator = match choice.as_str() {
        "auto" => AcceleratorChoice::Auto,
        "kvm" => AcceleratorChoice::Kvm,
        "tcg" => AcceleratorChoice::Tcg,
        other => return Err(invalid("QEMU_ACCELERATOR", other, "auto, kvm or tcg")),
    };
    let user = env.own("RUN_AS").unwrap_or_else(|| NOBODY.to_owned());
    let run_as = ids(&user).ok_or_else(|| {
        let expected = "a user and a group by number, like 65534:65534, or 0:0 for root";
        invalid("QEMU_RUN_AS", &user, expected)
    })?;
    Ok(QemuSettings {
        accelerator,
        firmware: env.shared("OVMF_CODE").map(PathBuf::from),
        run_as: (run_as != (0, 0)).then_some(run_as),
        gpus: gpus(env),
    })
}

fn gpus(env: &Env<'_>) -> GpuSettings {
    let root = env
        .own("DIR")
        .map_or_else(|| PathBuf::from(super::QEMU.root), PathBuf::from);
    let path = |value: Option<String>, default: &Path| {
        value.map_or_else(|| default.to_owned(), PathBuf::from)
    };
    let managed = env.shared("MIG_LIFECYCLE_MANAGED");
    let managed = managed.is_some_and(|value| !["0", "false"].contains(&value.as_str()));
    // Beside the program, wherever that is.
    let script = std::env::current_exe().unwrap_or_default();
    let script = script.with_file_name("qemu-mig-setup.sh");
    GpuSettings {
        vfio_inventory: path(
            env.shared("VFIO_INVENTORY"),
            &root.join("vfio-inventory.txt"),
        ),
        mig_inventory: path(env.shared("MIG_INVENTORY"), &root.join("mig-inventory.txt")),
        mig_layout: path(env.shared("MIG_LAYOUT_CONF"), &root.join("mig-layout.conf")),
        sysfs: path(env.shared("FUSE_SYSFS"), Path::new("/sys")),
        nvidia_smi: PathBuf::from("nvidia-smi"),
        mig_setup: managed.then(|| path(env.shared("MIG_SETUP_SCRIPT"), &script)),
    }
}

fn ids(text: &str) -> Option<(u32, u32)> {
    let (user, group) = text.split_once(':')?;
    Some((user.parse().ok()?, group.parse().ok()?))
}
