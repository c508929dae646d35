//! Hosts: where VMs run, what they offer and what is taken.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Arch, HostId, Labels, Resources, UnknownName};

/// What drives the VMs of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Firecracker: snapshots, no GPU.
    Firecracker,
    /// QEMU: GPUs, no snapshot, no fork.
    Qemu,
}

impl Backend {
    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Firecracker => "firecracker",
            Self::Qemu => "qemu",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Backend {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "firecracker" => Ok(Self::Firecracker),
            "qemu" => Ok(Self::Qemu),
            _ => Err(UnknownName::new("backend", text)),
        }
    }
}

/// Whether a host takes placements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostState {
    /// Takes placements.
    Active,
    /// Takes none; what runs there stays.
    Cordoned,
    /// Takes none; the reconcile loop empties it as far as it was told to.
    Draining,
}

impl HostState {
    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
        }
    }
}

impl fmt::Display for HostState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for HostState {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "active" => Ok(Self::Active),
            "cordoned" => Ok(Self::Cordoned),
            "draining" => Ok(Self::Draining),
            _ => Err(UnknownName::new("host state", text)),
        }
    }
}

/// What a host offers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capacity {
    /// vCPUs.
    pub cpus: i32,
    /// Memory in MiB.
    pub ram_mb: i32,
    /// Disk in GiB.
    pub storage_gb: i32,
    /// VM slots: policy, always declared.
    pub vm_count: i32,
    /// Architecture; `None` counts as amd64.
    pub arch: Option<Arch>,
    /// Whole GPU devices.
    pub gpus: i32,
    /// Kind of those devices; empty when unknown.
    pub gpu_kind: String,
}

/// What the environments on a host have been charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allocated {
    /// vCPUs.
    pub cpus: i32,
    /// Memory in MiB.
    pub ram_mb: i32,
    /// Disk in GiB.
    pub storage_gb: i32,
    /// VM slots.
    pub vm_count: i32,
    /// Whole GPU devices.
    pub gpus: i32,
}

/// A registered host. The agent's token is not part of it: the store hands it
/// out on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The operator's id.
    pub id: HostId,
    /// Base URL of its agent.
    pub url: String,
    /// Region; empty when none was given.
    pub region: String,
    /// What drives its VMs.
    pub backend: Backend,
    /// Declared labels.
    pub labels: Labels,
    /// Whether it takes placements.
    pub state: HostState,
    /// What it offers.
    pub capacity: Capacity,
    /// What is taken.
    pub allocated: Allocated,
    /// When it was registered last; no sign of life.
    pub last_seen: Timestamp,
    /// When it was registered first.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl Host {
    /// Its architecture; a host that names none is amd64.
    pub fn arch(&self) -> Arch {
        self.capacity.arch.unwrap_or(Arch::Amd64)
    }

    /// What is left of each amount; negative when the host is overcommitted.
    pub const fn free(&self) -> Resources {
        Resources {
            cpus: self.capacity.cpus.saturating_sub(self.allocated.cpus),
            ram_mb: self.capacity.ram_mb.saturating_sub(self.allocated.ram_mb),
            storage_gb: self
                .capacity
                .storage_gb
                .saturating_sub(self.allocated.storage_gb),
            gpus: self.capacity.gpus.saturating_sub(self.allocated.gpus),
        }
    }

    /// VM slots that are left.
    pub const fn free_slots(&self) -> i32 {
        self.capacity
            .vm_count
            .saturating_sub(self.allocated.vm_count)
    }
}
