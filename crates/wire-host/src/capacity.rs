//! `GET /v1/capacity` and `GET /healthz`: what a host has, and that it answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the host has in all; reservations are the control plane's business.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Logical CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub ram_mb: u64,
    /// Free space where VM disks live, in GiB, rounded down.
    pub storage_gb: u64,
    /// `amd64`, `arm64` or the lower-cased machine name.
    pub arch: String,
    /// Whole GPUs.
    #[serde(default)]
    pub gpus: u32,
    /// Kind of the GPUs when all share one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_kind: Option<String>,
    /// Inventory per device; empty on Firecracker hosts.
    #[serde(default)]
    pub gpu_devices: Vec<GpuDevice>,
    /// Carved MIG instances; empty where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig_instances: Vec<MigInstance>,
    /// How many there are of each profile; empty where there are none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mig_profiles: BTreeMap<String, u32>,
    /// Release of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// VMs on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guests: Option<u32>,
}

/// One MIG instance of a host. Absent facts are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MigInstance {
    /// Its profile.
    pub profile: String,
    /// Kind of its GPU.
    pub kind: String,
    /// Its identifier.
    pub uuid: String,
    /// The GPU that it is a part of.
    pub parent_gpu_uuid: String,
}

/// One GPU of a host, as probed. Absent facts are empty or zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuDevice {
    /// Position in the host's own listing.
    pub index: u32,
    /// The vendor's identifier.
    pub uuid: String,
    /// Marketing name.
    pub model: String,
    /// PCI address.
    pub pci_bus_id: String,
    /// Device memory in MiB.
    pub memory_mb: u64,
    /// Version of the host's driver.
    pub driver_version: String,
    /// Compute capability, e.g. `8.0`.
    pub compute_cap: String,
    /// Whether the device can be partitioned.
    pub mig_capable: bool,
    /// Current partitioning mode.
    pub mig_mode: String,
    /// CUDA release.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cuda_version: String,
    /// IOMMU group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub iommu_group: String,
}

/// Answer of `GET /` and `GET /healthz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Always true: an agent that cannot serve does not answer.
    pub ok: bool,
    /// `fc-agent` or `qemu-agent`.
    pub app_name: String,
}
