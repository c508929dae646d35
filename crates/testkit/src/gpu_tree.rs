//! A host with GPUs, of files: what the kernel would say of it, its inventories, and programs in QEMU's
//! and the layout script's place.
//!
//! Two cards are given out whole, each with a companion in its IOMMU group, and one in two parts. For
//! each device a guest gets one that QEMU makes itself, so attaching is real, and so is everything else.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Result;

/// Identifiers of the whole cards.
pub const CARDS: [&str; 2] = ["GPU-1", "GPU-2"];
/// Identifiers of the parts, `1g.10gb` of kind `h100`.
pub const PARTS: [&str; 2] = [
    "c73b0b02-1e4b-4c5a-9d2e-000000000001",
    "c73b0b02-1e4b-4c5a-9d2e-000000000002",
];
/// Prints how many devices of the host a guest sees, for `sh -c`. They are those that QEMU has for teaching.
pub const COUNT: &str = "cd /sys/bus/pci/devices && \
     for d in *; do echo $(cat $d/vendor):$(cat $d/device); done | grep -c 0x1234:0x11e8";

/// The host.
#[derive(Debug)]
pub struct GpuTree {
    root: PathBuf,
}

impl GpuTree {
    /// Makes it below `root`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn new(root: PathBuf) -> Result<Self> {
        let tree = Self { root };
        for (bus, group) in [("65", "11"), ("66", "12")] {
            for function in 0..2 {
                tree.device(&format!("0000:{bus}:00.{function}"), group)?;
            }
        }
        for uuid in PARTS {
            fs::create_dir_all(tree.path("bus/mdev/devices").join(uuid))?;
        }
        let card = |bus: &str, uuid: &str| {
            format!(
                "1 a100 0000:{bus}:00.0 0000:{bus}:00.1 | uuid={uuid};model=NVIDIA A100;memory_mb=40960\n"
            )
        };
        let vfio = card("65", CARDS[0]) + &card("66", CARDS[1]);
        fs::write(tree.path("vfio-inventory.txt"), vfio)?;
        let mig = PARTS.map(|uuid| format!("1g.10gb h100 {uuid} GPU-3\n"));
        fs::write(tree.path("mig-inventory.txt"), mig.concat())?;
        // Puts QEMU's own device into the place of each that the host would have.
        let qemu = "n=$#\n\
             for word in \"$@\"; do\n\
             case $word in *'\"vfio-pci\"'*) word=edu ;; esac\n\
             set -- \"$@\" \"$word\"\n\
             done\n\
             shift \"$n\"\n\
             exec qemu-system-x86_64 \"$@\"";
        program(&tree.path("qemu"), qemu)?;
        let ran = tree.path("layouts");
        program(
            &tree.path("layout"),
            &format!("echo layout >>{}", ran.display()),
        )?;
        Ok(tree)
    }

    /// What `qemu-agent` is told to be on this host.
    #[must_use]
    pub fn env(&self) -> Vec<(&'static str, String)> {
        let path = |name: &str| self.path(name).display().to_string();
        vec![
            ("QEMU_BIN", path("qemu")),
            ("QEMU_ACCELERATOR", "tcg".to_owned()),
            ("FUSE_SYSFS", self.root.display().to_string()),
            ("VFIO_INVENTORY", path("vfio-inventory.txt")),
            ("MIG_INVENTORY", path("mig-inventory.txt")),
            ("MIG_LIFECYCLE_MANAGED", "1".to_owned()),
            ("MIG_SETUP_SCRIPT", path("layout")),
        ]
    }

    /// How often the layout of the card in parts was applied again.
    #[must_use]
    pub fn layouts(&self) -> usize {
        let text = fs::read_to_string(self.path("layouts"));
        text.map_or(0, |text| text.lines().count())
    }

    /// What applies the layout.
    #[must_use]
    pub fn layout_script(&self) -> PathBuf {
        self.path("layout")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn device(&self, slot: &str, group: &str) -> Result<()> {
        let device = self.path("bus/pci/devices").join(slot);
        let group = self.path("kernel/iommu_groups").join(group);
        let driver = self.path("bus/pci/drivers/vfio-pci");
        for dir in [&device, &group.join("devices"), &driver] {
            fs::create_dir_all(dir)?;
        }
        symlink(driver, device.join("driver"))?;
        symlink(&group, device.join("iommu_group"))?;
        symlink(&device, group.join("devices").join(slot))?;
        Ok(())
    }
}

fn program(path: &Path, body: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{body}\n"))?;
    Ok(fs::set_permissions(path, PermissionsExt::from_mode(0o755))?)
}
