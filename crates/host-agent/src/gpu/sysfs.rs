//! What the kernel says of devices that are to be given to guests.
//!
//! The root is a parameter, so that tests have a machine of their own.

use std::fs;
use std::path::{Path, PathBuf};

use super::pci::PciAddress;

/// The driver that a device must have to be given away.
const DRIVER: &str = "vfio-pci";
/// Class of bridges: they stay with the host, whatever group they are in.
const BRIDGE: &str = "0x06";

/// The kernel's view.
#[derive(Debug, Clone)]
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// How many IOMMU groups there are; none where the IOMMU is off.
    pub(super) fn groups(&self) -> usize {
        let groups = fs::read_dir(self.root.join("kernel/iommu_groups"));
        groups.map_or(0, |groups| groups.flatten().count())
    }

    /// Whether the driver is loaded that devices need to be given away.
    pub(super) fn has_driver(&self) -> bool {
        self.root.join("bus/pci/drivers").join(DRIVER).exists()
    }

    /// Number of a device's IOMMU group; `None` if it has none, or is not there.
    pub(super) fn group(&self, slot: PciAddress) -> Option<String> {
        last_part(&self.device(slot).join("iommu_group"))
    }

    /// Why devices that should make up an IOMMU group cannot be given away together.
    pub(super) fn fault(&self, slots: &[PciAddress]) -> Option<String> {
        let first = *slots.first()?;
        let Some(group) = self.group(first) else {
            return Some(self.no_group(first));
        };
        for slot in slots {
            match self.group(*slot) {
                Some(theirs) if theirs == group => {}
                Some(theirs) => {
                    return Some(format!(
                        "{slot} is in IOMMU group {theirs} and {first} in {group}"
                    ));
                }
                None => return Some(self.no_group(*slot)),
            }
            let driver = last_part(&self.device(*slot).join("driver"));
            if driver.as_deref() != Some(DRIVER) {
                let driver = driver.as_deref().unwrap_or("no driver");
                return Some(format!("{slot} is bound to {driver} and not to {DRIVER}"));
            }
        }
        let missing = self.members(&group).find(|slot| !slots.contains(slot));
        missing.map(|slot| format!("{slot} of IOMMU group {group} is not in the inventory"))
    }

    /// Whether a mediated device is there.
    pub(super) fn has_mdev(&self, uuid: &str) -> bool {
        self.root.join("bus/mdev/devices").join(uuid).exists()
    }

    fn device(&self, slot: PciAddress) -> PathBuf {
        self.root.join("bus/pci/devices").join(slot.to_string())
    }

    fn no_group(&self, slot: PciAddress) -> String {
        if self.device(slot).exists() {
            format!(
                "{slot} has no IOMMU group: switch the IOMMU on (intel_iommu=on or amd_iommu=on)"
            )
        } else {
            format!("{slot} is not on this host")
        }
    }

    /// The functions of a group, without bridges.
    fn members(&self, group: &str) -> impl Iterator<Item = PciAddress> + '_ {
        let dir = self.root.join("kernel/iommu_groups").join(group);
        let entries = fs::read_dir(dir.join("devices")).into_iter().flatten();
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|slot: &PciAddress| !self.is_bridge(*slot))
    }

    fn is_bridge(&self, slot: PciAddress) -> bool {
        let class = fs::read_to_string(self.device(slot).join("class"));
        class.is_ok_and(|class| class.starts_with(BRIDGE))
    }
}

/// The last part of where a link leads.
fn last_part(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A tree in which devices can be put.
    #[derive(Debug)]
    pub(crate) struct Tree(pub(crate) tempfile::TempDir);

    impl Tree {
        pub(crate) fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        pub(crate) fn add(&self, slot: &str, group: &str, driver: &str, class: &str) {
            let root = self.0.path();
            let device = root.join("bus/pci/devices").join(slot);
            let members = root.join("kernel/iommu_groups").join(group).join("devices");
            fs::create_dir_all(&device).unwrap();
            fs::create_dir_all(&members).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
            symlink(members.parent().unwrap(), device.join("iommu_group")).unwrap();
            symlink(&device, members.join(slot)).unwrap();
            if !driver.is_empty() {
                let drivers = root.join("bus/pci/drivers").join(driver);
                fs::create_dir_all(&drivers).unwrap();
                symlink(drivers, device.join("driver")).unwrap();
            }
        }

        pub(crate) fn add_mdev(&self, uuid: &str) {
            fs::create_dir_all(self.0.path().join("bus/mdev/devices").join(uuid)).unwrap();
        }
    }

    fn slots(of: &[&str]) -> Vec<PciAddress> {
        of.iter().map(|slot| slot.parse().unwrap()).collect()
    }

    #[test]
    fn a_whole_group_on_vfio_can_be_given_away() {
        let tree = Tree::new();
        tree.add("0000:00:01.0", "12", "pcieport", "0x060400");
        tree.add("0000:65:00.0", "12", "vfio-pci", "0x030200");
        tree.add("0000:65:00.1", "12", "vfio-pci", "0x040300");
        let sysfs = Sysfs::new(tree.0.path().to_owned());
        let both = slots(&["0000:65:00.0", "0000:65:00.1"]);
        assert_eq!(sysfs.group(both[0]).as_deref(), Some("12"));
        assert_eq!(sysfs.fault(&both), None);
        let fault = sysfs.fault(&both[..1]).unwrap();
        assert_eq!(
            fault,
            "0000:65:00.1 of IOMMU group 12 is not in the inventory"
        );
    }

    #[test]
    fn what_is_in_the_way_is_said() {
        let tree = Tree::new();
        tree.add("0000:65:00.0", "1", "nvidia", "0x030200");
        tree.add("0000:66:00.0", "2", "vfio-pci", "0x030200");
        tree.add("0000:67:00.0", "3", "vfio-pci", "0x030200");
        tree.add("0000:68:00.0", "4", "", "0x030200");
        fs::create_dir_all(tree.0.path().join("bus/pci/devices/0000:69:00.0")).unwrap();
        let sysfs = Sysfs::new(tree.0.path().to_owned());
        for (of, want) in [
            (&["65:00.0"][..], "is bound to nvidia and not to vfio-pci"),
            (
                &["66:00.0", "67:00.0"],
                "in IOMMU group 3 and 0000:66:00.0 in 2",
            ),
            (&["68:00.0"], "bound to no driver"),
            (&["69:00.0"], "switch the IOMMU on"),
            (&["70:00.0"], "0000:70:00.0 is not on this host"),
        ] {
            let fault = sysfs.fault(&slots(of)).unwrap();
            assert!(fault.contains(want), "{fault}");
        }
    }

    #[test]
    fn a_mediated_device_is_there_or_not() {
        let tree = Tree::new();
        tree.add_mdev("c73b0b02-1e4b-4c5a-9d2e-0123456789ab");
        let sysfs = Sysfs::new(tree.0.path().to_owned());
        assert!(sysfs.has_mdev("c73b0b02-1e4b-4c5a-9d2e-0123456789ab"));
        assert!(!sysfs.has_mdev("d73b0b02-1e4b-4c5a-9d2e-0123456789ab"));
    }
}
