//! Hosts: where VMs run, what they offer and what is taken.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{Arch, BoundGpus, GpuDevice, HostId, Labels, MigInstance, Resources};

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
    const ALL: [Self; 2] = [Self::Firecracker, Self::Qemu];

    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Firecracker => "firecracker",
            Self::Qemu => "qemu",
        }
    }
}

named!(Backend, "backend");

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
    const ALL: [Self; 3] = [Self::Active, Self::Cordoned, Self::Draining];

    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
        }
    }
}

named!(HostState, "host state");

/// What is done with the environments of a host that is being drained. They are never
/// destroyed for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evict {
    /// Nothing: the host is empty once they have ended.
    #[default]
    None,
    /// One after the other is moved to another host, while one fits.
    Migrate,
    /// Each is drained: its workload is asked to stop.
    Drain,
}

impl Evict {
    const ALL: [Self; 3] = [Self::None, Self::Migrate, Self::Drain];

    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Migrate => "migrate",
            Self::Drain => "drain",
        }
    }
}

named!(Evict, "eviction");

/// What a host offers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
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
    /// Instances by MIG profile (lowercase): always declared.
    pub mig_profiles: BTreeMap<String, i32>,
    /// Instances that the agent reports.
    pub mig_instances: Vec<MigInstance>,
    /// Devices that the agent reports.
    pub gpu_devices: Vec<GpuDevice>,
}

impl Capacity {
    /// Whether any environment with GPUs could run here.
    pub fn has_gpus(&self) -> bool {
        self.gpus > 0 || !self.mig_profiles.is_empty()
    }
}

/// What the environments on a host have been charged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
    /// Which GPU units.
    pub bound: BoundGpus,
}

/// The last check of a host's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentCheck {
    /// When.
    pub checked_at: Timestamp,
    /// Since when it has answered, or not.
    pub changed_at: Timestamp,
    /// Why it failed; `None` when the agent answered.
    pub error: Option<String>,
    /// Release of the agent; empty when it does not say.
    pub version: String,
    /// VMs there; `None` when it does not say.
    pub guests: Option<i64>,
    /// Free disk in GiB; `None` when unknown.
    pub disk_free_gb: Option<i64>,
}

impl AgentCheck {
    /// Whether the agent answered.
    pub const fn is_reachable(&self) -> bool {
        self.error.is_none()
    }
}

/// Boots that failed in a row on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedBoots {
    /// How many.
    pub count: i32,
    /// How the last one failed.
    pub last_error: String,
    /// Since when the host gets no placements for it; `None` while it still does.
    pub quarantined_at: Option<Timestamp>,
    /// When the next boot is tried there to find out whether it works again.
    pub retry_at: Option<Timestamp>,
    /// Such boots that have failed.
    pub retries: i32,
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
    /// What is done with its environments while it is being drained.
    pub evict: Evict,
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
    /// Whether its agent answers; `None` before the first check.
    pub agent: Option<AgentCheck>,
    /// Boots that failed since the last one that worked; `None` = none.
    pub failed_boots: Option<FailedBoots>,
}

impl Host {
    /// Since when it gets no placements because boots fail there.
    pub fn quarantined_at(&self) -> Option<Timestamp> {
        self.failed_boots
            .as_ref()
            .and_then(|boots| boots.quarantined_at)
    }

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
