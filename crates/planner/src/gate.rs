//! The gates that a host has to pass to take an environment, in order, with the
//! texts that say why it does not (lifecycle 14).
//!
//! [`Gate::first_rejecting`] runs for every host of a placement and allocates
//! nothing; the text is made only for the one host that a pin names.

use std::fmt::Write as _;

use fuse_model::{Arch, Backend, EnvironmentSpec, Host, HostState};

/// Why a host does not take an environment. The order is the order of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// The host takes no placements.
    State,
    /// It is in another region.
    Region,
    /// It has another architecture.
    Arch,
    /// It cannot attach GPUs.
    Backend,
    /// It lacks labels.
    Labels,
    /// Not enough is free.
    Capacity,
}

impl Gate {
    /// Every gate, in the order of checks.
    pub const ALL: [Self; 6] = [
        Self::State,
        Self::Region,
        Self::Arch,
        Self::Backend,
        Self::Labels,
        Self::Capacity,
    ];

    /// The name in `details`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Region => "region",
            Self::Arch => "arch",
            Self::Backend => "backend",
            Self::Labels => "labels",
            Self::Capacity => "capacity",
        }
    }

    /// The first gate that the host does not pass; `None` when it is eligible.
    pub(crate) fn first_rejecting(spec: &EnvironmentSpec, host: &Host) -> Option<Self> {
        if host.state != HostState::Active {
            return Some(Self::State);
        }
        if !spec.region.is_empty() && spec.region != host.region {
            return Some(Self::Region);
        }
        if spec.arch.is_some_and(|arch| arch != host.arch()) {
            return Some(Self::Arch);
        }
        if spec.gpus > 0 && host.backend != Backend::Qemu {
            return Some(Self::Backend);
        }
        if !has_labels(spec, host) {
            return Some(Self::Labels);
        }
        (!fits(spec, host)).then_some(Self::Capacity)
    }

    /// What follows `host "<id>" ` in the text of a rejection.
    pub(crate) fn reason(self, spec: &EnvironmentSpec, host: &Host) -> String {
        match self {
            Self::State => format!("is {}, not active", host.state),
            Self::Region => format!(
                "is in region \"{}\", the spec requires \"{}\"",
                host.region, spec.region
            ),
            Self::Arch => format!(
                "is {}, the spec requires {}",
                host.arch(),
                spec.arch.map_or("any", Arch::as_str)
            ),
            Self::Backend => format!(
                "has backend \"{}\", gpu environments require \"qemu\"",
                host.backend
            ),
            Self::Labels => format!("does not have labels {}", missing_labels(spec, host)),
            Self::Capacity => format!("does not fit {}", need(spec)),
        }
    }
}

/// Whether the host has every label pair that the spec asks for.
pub(crate) fn has_labels(spec: &EnvironmentSpec, host: &Host) -> bool {
    spec.labels
        .iter()
        .all(|(key, value)| host.labels.get(key) == Some(value))
}

/// Whether the host could serve GPUs at all.
pub(crate) fn serves_gpus(host: &Host) -> bool {
    host.backend == Backend::Qemu && host.capacity.gpus > 0
}

fn missing_labels(spec: &EnvironmentSpec, host: &Host) -> String {
    pairs(
        spec.labels
            .iter()
            .filter(|(key, value)| host.labels.get(*key) != Some(*value)),
    )
}

/// `k=v,...`, sorted by key as the map is.
pub(crate) fn pairs<'a>(labels: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let mut text = String::new();
    for (key, value) in labels {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _infallible = write!(text, "{comma}{key}={value}");
    }
    text
}

/// `<c>CPU/<r>MB/<s>GB`
pub(crate) fn need(spec: &EnvironmentSpec) -> String {
    format!("{}CPU/{}MB/{}GB", spec.cpus, spec.ram_mb, spec.storage_gb)
}

/// `2 gpus of kind "a100"`, `1 1g.10gb mig instance`; for requests with GPUs.
pub(crate) fn need_gpus(spec: &EnvironmentSpec) -> String {
    let plural = if spec.gpus == 1 { "" } else { "s" };
    let mut text = if spec.gpu_profile.is_empty() {
        format!("{} gpu{plural}", spec.gpus)
    } else {
        format!("{} {} mig instance{plural}", spec.gpus, spec.gpu_profile)
    };
    if !spec.gpu_kind.is_empty() {
        // Writing to a String cannot fail.
        let _infallible = write!(text, " of kind \"{}\"", spec.gpu_kind);
    }
    text
}

fn fits(spec: &EnvironmentSpec, host: &Host) -> bool {
    let need = spec.resources();
    let free = host.free();
    host.free_slots() >= 1
        && free.cpus >= need.cpus
        && free.ram_mb >= need.ram_mb
        && free.storage_gb >= need.storage_gb
        && (spec.gpus == 0 || fits_gpus(spec, host))
}

/// Whole devices counted on the host; its MIG instances are a pool of their own
/// that such devices never serve.
fn fits_gpus(spec: &EnvironmentSpec, host: &Host) -> bool {
    spec.gpu_profile.is_empty()
        && host.free().gpus >= spec.gpus
        && is_kind(&spec.gpu_kind, &host.capacity.gpu_kind)
}

/// A kind is asked for by any part of its name, in any case; a host that does
/// not name its kind, and a request without one, match all.
fn is_kind(wanted: &str, offered: &str) -> bool {
    wanted.is_empty()
        || offered.is_empty()
        || offered
            .to_ascii_lowercase()
            .contains(&wanted.to_ascii_lowercase())
}
