//! GPUs of hosts: what is there, what is bound, and which units a request gets.
//!
//! [`Host::bind_gpus`] is the one rule: placement asks it whether a host fits, and the
//! transaction that charges the host asks it again under the host's row lock, so that
//! no two environments are given the same device or instance.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Capacity, EnvironmentSpec, Host};

/// A GPU of a host, as its agent reports it. Absent facts are empty or zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuDevice {
    /// The vendor's identifier; a device without one cannot be bound.
    pub uuid: String,
    /// Marketing name.
    pub model: String,
    /// PCI address.
    pub pci_bus_id: String,
    /// Device memory in MiB.
    pub memory_mb: i64,
    /// Version of the host's driver.
    pub driver_version: String,
    /// CUDA release.
    pub cuda_version: String,
    /// Compute capability.
    pub compute_cap: String,
    /// Whether it can be partitioned.
    pub mig_capable: bool,
    /// Current partitioning mode.
    pub mig_mode: String,
    /// IOMMU group.
    pub iommu_group: String,
}

/// A MIG instance carved on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MigInstance {
    /// Its identifier.
    pub uuid: String,
    /// Its profile.
    pub profile: String,
    /// Kind of the GPU that it is a part of; may be empty.
    pub kind: String,
    /// That GPU.
    pub parent_gpu_uuid: String,
}

/// GPU units of a host that environments have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BoundGpus {
    /// Instances by MIG profile, known by UUID or not.
    pub mig_profiles: BTreeMap<String, i32>,
    /// Whole devices.
    pub gpu_uuids: BTreeSet<String>,
    /// Instances.
    pub mig_instance_uuids: BTreeSet<String>,
}

impl BoundGpus {
    /// Adds what one environment has.
    pub fn add(&mut self, profile: &str, mig_count: i32, uuids: Vec<String>) {
        if profile.is_empty() {
            self.gpu_uuids.extend(uuids);
        } else {
            *self.mig_profiles.entry(profile.to_owned()).or_default() += mig_count;
            self.mig_instance_uuids.extend(uuids);
        }
    }
}

impl Host {
    /// The units that `spec` would get here: UUIDs in the order of the inventory, none
    /// on a host that only counts. `None` when the host does not have them. The count
    /// of whole devices is a matter of the scalar capacity and is not looked at.
    pub fn bind_gpus(&self, spec: &EnvironmentSpec) -> Option<Vec<String>> {
        if spec.gpus <= 0 {
            return Some(Vec::new());
        }
        let wanted = usize::try_from(spec.gpus).ok()?;
        if spec.gpu_profile.is_empty() {
            self.bind_devices(&spec.gpu_kind, wanted)
        } else {
            self.bind_instances(spec, wanted)
        }
    }

    fn bind_devices(&self, kind: &str, wanted: usize) -> Option<Vec<String>> {
        let capacity = &self.capacity;
        if capacity.gpu_devices.is_empty() {
            let matches = capacity.gpu_kind.is_empty() || is_part(kind, &capacity.gpu_kind);
            return matches.then(Vec::new);
        }
        let free = capacity.gpu_devices.iter().filter(|device| {
            !device.uuid.is_empty()
                && !self.allocated.bound.gpu_uuids.contains(&device.uuid)
                && device_is(kind, device, capacity)
        });
        exactly(wanted, free.map(|device| &device.uuid))
    }

    /// Counts are declared; instances that the agent knows are bound within them.
    fn bind_instances(&self, spec: &EnvironmentSpec, wanted: usize) -> Option<Vec<String>> {
        let (capacity, bound) = (&self.capacity, &self.allocated.bound);
        let count = |of: &BTreeMap<String, i32>| of.get(&spec.gpu_profile).copied().unwrap_or(0);
        if count(&capacity.mig_profiles) - count(&bound.mig_profiles) < spec.gpus {
            return None;
        }
        let kind = spec.gpu_kind.as_str();
        if !capacity.mig_instances.is_empty() {
            let free = capacity.mig_instances.iter().filter(|instance| {
                !instance.uuid.is_empty()
                    && instance.profile.eq_ignore_ascii_case(&spec.gpu_profile)
                    && !bound.mig_instance_uuids.contains(&instance.uuid)
                    && instance_is(kind, instance, capacity)
            });
            return exactly(wanted, free.map(|instance| &instance.uuid));
        }
        let matches = if capacity.gpu_devices.is_empty() {
            host_is(kind, capacity)
        } else {
            let mut devices = capacity.gpu_devices.iter();
            devices.any(|device| device.mig_capable && device_is(kind, device, capacity))
        };
        matches.then(Vec::new)
    }
}

/// The first `wanted` of the free units.
fn exactly<'a>(wanted: usize, free: impl Iterator<Item = &'a String>) -> Option<Vec<String>> {
    let units: Vec<String> = free.take(wanted).cloned().collect();
    (units.len() == wanted).then_some(units)
}

/// A kind is asked for by any part of its name, in any case; no kind matches all.
fn is_part(wanted: &str, offered: &str) -> bool {
    offered
        .to_ascii_lowercase()
        .contains(&wanted.to_ascii_lowercase())
}

/// The kind of a host that does not name one is anything.
fn host_is(wanted: &str, capacity: &Capacity) -> bool {
    wanted.is_empty()
        || capacity.gpu_kind.is_empty()
        || capacity.gpu_kind.eq_ignore_ascii_case(wanted)
}

fn device_is(wanted: &str, device: &GpuDevice, capacity: &Capacity) -> bool {
    if device.model.is_empty() {
        host_is(wanted, capacity)
    } else {
        is_part(wanted, &device.model)
    }
}

fn instance_is(wanted: &str, instance: &MigInstance, capacity: &Capacity) -> bool {
    if !instance.kind.is_empty() {
        return is_part(wanted, &instance.kind);
    }
    let mut devices = capacity.gpu_devices.iter();
    match devices.find(|device| device.uuid == instance.parent_gpu_uuid) {
        Some(parent) => device_is(wanted, parent, capacity),
        None => host_is(wanted, capacity),
    }
}
