//! What this host has to give away: the two inventories, next to what the kernel and the vendor's
//! tool say.

use fuse_wire_host::{Capacity, GpuDevice, MigInstance};

use super::mig::{self, Instance};
use super::smi;
use super::sysfs::Sysfs;
use super::text::InventoryError;
use super::vfio::{self, Group};
use crate::config::GpuSettings;

/// A group of the inventory, and whether it can be given away.
#[derive(Debug, Clone)]
pub(super) struct WholeGroup {
    pub(super) listed: Group,
    /// Identifiers of the GPUs in it, as far as they are known.
    pub(super) uuids: Vec<String>,
    /// Marketing names of them.
    pub(super) models: Vec<String>,
    /// Why it cannot be given away.
    pub(super) fault: Option<String>,
}

/// An instance of the inventory, and whether it can be given away.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) listed: Instance,
    /// Marketing name of its GPU, if it is known.
    pub(super) model: String,
    /// Why it cannot be given away.
    pub(super) fault: Option<String>,
}

/// Everything that can be given away.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    pub(super) groups: Vec<WholeGroup>,
    pub(super) parts: Vec<Part>,
    pub(super) devices: Vec<GpuDevice>,
}

impl Inventory {
    /// Reads the inventory of a host with these settings.
    ///
    /// # Errors
    /// An inventory file cannot be read or is wrong.
    pub async fn read(settings: &GpuSettings) -> Result<Self, InventoryError> {
        let groups = vfio::read(&settings.vfio_inventory)?;
        let instances = mig::read(&settings.mig_inventory)?;
        let sysfs = Sysfs::new(settings.sysfs.clone());
        let mut devices = listed_devices(&groups);
        if devices.is_empty() {
            devices = smi::devices(&settings.nvidia_smi).await;
        }
        for device in &mut devices {
            let group = device
                .pci_bus_id
                .parse()
                .ok()
                .and_then(|slot| sysfs.group(slot));
            device.iommu_group = group.unwrap_or_default();
        }
        let groups = groups.into_iter();
        let groups = groups
            .map(|listed| whole_group(listed, &devices, &sysfs))
            .collect();
        let part = |listed: Instance| {
            let parent = devices
                .iter()
                .find(|d| d.uuid == listed.parent && !d.uuid.is_empty());
            let model = parent
                .map(|device| device.model.clone())
                .unwrap_or_default();
            let missing =
                "its mediated device is not there; apply the layout with qemu-mig-setup.sh";
            let fault = (!sysfs.has_mdev(&listed.uuid)).then(|| missing.to_owned());
            Part {
                listed,
                model,
                fault,
            }
        };
        let parts = instances.into_iter().map(part).collect();
        Ok(Self {
            groups,
            parts,
            devices,
        })
    }

    /// Puts the GPUs into what the host says of itself.
    pub fn describe(self, capacity: &mut Capacity) {
        let counts = self.groups.iter().map(|group| group.listed.count);
        capacity.gpus = counts.fold(0, u32::saturating_add);
        let mut kinds = self.groups.iter().map(|group| &group.listed.kind);
        let first = kinds.next();
        let one = first.filter(|first| kinds.all(|kind| kind == *first));
        capacity.gpu_kind = one.cloned();
        for part in &self.parts {
            let profile = part.listed.profile.clone();
            *capacity.mig_profiles.entry(profile).or_default() += 1;
        }
        let instance = |part: Part| MigInstance {
            profile: part.listed.profile,
            kind: part.listed.kind,
            uuid: part.listed.uuid,
            parent_gpu_uuid: part.listed.parent,
        };
        capacity.mig_instances = self.parts.into_iter().map(instance).collect();
        capacity.gpu_devices = self.devices;
    }
}

/// The devices that the inventory describes: none when it knows nothing of any.
fn listed_devices(groups: &[Group]) -> Vec<GpuDevice> {
    if groups.iter().all(|group| group.facts.is_none()) {
        return Vec::new();
    }
    let device = |(group, index): (&Group, u32)| {
        let facts = group.facts.clone().unwrap_or_default();
        let slot = facts.bus_id.or(group.slots.first().copied());
        GpuDevice {
            index,
            uuid: facts.uuid,
            model: facts.model,
            pci_bus_id: slot.map(|slot| slot.to_string()).unwrap_or_default(),
            memory_mb: facts.memory_mb,
            driver_version: facts.driver_version,
            compute_cap: facts.compute_cap,
            mig_capable: smi::is_mig_capable(&facts.mig_mode),
            mig_mode: facts.mig_mode,
            ..GpuDevice::default()
        }
    };
    groups.iter().zip(0..).map(device).collect()
}

fn whole_group(listed: Group, devices: &[GpuDevice], sysfs: &Sysfs) -> WholeGroup {
    let inside = |device: &&GpuDevice| {
        let slot = device.pci_bus_id.parse();
        slot.is_ok_and(|slot| listed.slots.contains(&slot))
    };
    let inside: Vec<&GpuDevice> = devices.iter().filter(inside).collect();
    let uuids = inside.iter().map(|device| device.uuid.clone());
    let models = inside.iter().map(|device| device.model.clone());
    WholeGroup {
        uuids: uuids.filter(|uuid| !uuid.is_empty()).collect(),
        models: models.collect(),
        fault: sysfs.fault(&listed.slots),
        listed,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tests::Tree;
    use super::*;
    use std::path::Path;

    fn settings(tree: &Tree, vfio: &str, mig: &str) -> GpuSettings {
        let dir = tree.0.path();
        std::fs::write(dir.join("vfio.txt"), vfio).unwrap();
        std::fs::write(dir.join("mig.txt"), mig).unwrap();
        GpuSettings {
            vfio_inventory: dir.join("vfio.txt"),
            mig_inventory: dir.join("mig.txt"),
            mig_layout: dir.join("layout.conf"),
            sysfs: dir.to_owned(),
            nvidia_smi: dir.join("nvidia-smi"),
            mig_setup: None,
        }
    }

    async fn capacity(settings: &GpuSettings) -> Capacity {
        let mut capacity = Capacity::default();
        Inventory::read(settings)
            .await
            .unwrap()
            .describe(&mut capacity);
        capacity
    }

    fn tool(path: &Path, rows: &str) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(path, format!("#!/bin/sh\nprintf '{rows}'\n")).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    const UUID: &str = "c73b0b02-1e4b-4c5a-9d2e-0123456789ab";

    #[tokio::test]
    async fn the_inventory_is_what_the_host_has() {
        let tree = Tree::new();
        tree.add("0000:65:00.0", "12", "vfio-pci", "0x030200");
        let vfio = "1 a100 65:00.0 65:00.1 | uuid=GPU-1;model=NVIDIA A100;mig_mode=Disabled\n\
                    2 a100 66:00.0 66:00.1\n";
        let mig = format!(
            "1g.10gb a100 {UUID} GPU-9\n1g.10gb a100 {}\n",
            UUID.replace('c', "d")
        );
        let settings = settings(&tree, vfio, &mig);
        tool(
            &settings.nvidia_smi,
            "0, GPU-9, A, 0000:01:00.0, 1, 1, 1, N/A, N/A\\n",
        );
        let found = capacity(&settings).await;
        assert_eq!((found.gpus, found.gpu_kind.as_deref()), (3, Some("a100")));
        // Both lines are listed, and the tool is not asked: one line knew something.
        let [known, unknown] = &found.gpu_devices[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (known.uuid.as_str(), known.iommu_group.as_str()),
            ("GPU-1", "12")
        );
        assert!(known.mig_capable);
        assert_eq!(
            (unknown.index, unknown.pci_bus_id.as_str()),
            (1, "0000:66:00.0")
        );
        assert_eq!(found.mig_profiles["1g.10gb"], 2);
        assert_eq!(found.mig_instances[0].parent_gpu_uuid, "GPU-9");
    }

    #[tokio::test]
    async fn without_any_fact_the_tool_is_asked() {
        let tree = Tree::new();
        let settings = settings(&tree, "1 a100 65:00.0\n1 t4 3b:00.0\n", "");
        assert!(capacity(&settings).await.gpu_devices.is_empty());
        tool(
            &settings.nvidia_smi,
            "0, GPU-9, NVIDIA A100, 00000000:65:00.0, 1, 1, 1, N/A, N/A\\n",
        );
        let found = capacity(&settings).await;
        assert_eq!((found.gpus, found.gpu_kind.as_ref()), (2, None));
        assert_eq!(found.gpu_devices[0].uuid, "GPU-9");
        assert!(found.mig_instances.is_empty() && found.mig_profiles.is_empty());
        // What it says of a card that is listed names the group.
        let inventory = Inventory::read(&settings).await.unwrap();
        assert_eq!(inventory.groups[0].uuids, ["GPU-9"]);
    }

    #[tokio::test]
    async fn a_wrong_file_is_an_error_not_an_empty_host() {
        let tree = Tree::new();
        assert!(
            Inventory::read(&settings(&tree, "nonsense", ""))
                .await
                .is_err()
        );
        assert!(
            Inventory::read(&settings(&tree, "", "nonsense"))
                .await
                .is_err()
        );
    }
}
