//! The gates that a host has to pass to take an environment, in order, with the
//! texts that say why it does not (lifecycle 14).
//!
//! [`Gate::first_rejecting`] runs for every host of a placement and allocates
//! nothing unless GPUs are asked for; the text is made only for a host that
//! somebody asks about.

use std::fmt::Write as _;

use fuse_model::{Arch, Backend, EnvironmentSpec, Host, HostState};

/// Why a host does not take an environment. The order is the order of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// The host takes no placements.
    State,
    /// Its agent does not answer.
    Agent,
    /// Boots fail there.
    Quarantine,
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
    pub const ALL: [Self; 8] = [
        Self::State,
        Self::Agent,
        Self::Quarantine,
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
            Self::Agent => "agent",
            Self::Quarantine => "quarantine",
            Self::Region => "region",
            Self::Arch => "arch",
            Self::Backend => "backend",
            Self::Labels => "labels",
            Self::Capacity => "capacity",
        }
    }

    /// The gate behind which the host takes no placements at all.
    pub(crate) fn closed(host: &Host) -> Option<Self> {
        if host.state != HostState::Active {
            return Some(Self::State);
        }
        if host
            .agent
            .as_ref()
            .is_some_and(|check| !check.is_reachable())
        {
            return Some(Self::Agent);
        }
        host.quarantined_at().map(|_| Self::Quarantine)
    }

    /// The first gate that the host does not pass; `None` when it is eligible.
    pub(crate) fn first_rejecting(spec: &EnvironmentSpec, host: &Host) -> Option<Self> {
        if let Some(gate) = Self::closed(host) {
            return Some(gate);
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
            Self::Agent => {
                let error = host.agent.as_ref().and_then(|check| check.error.as_deref());
                format!("does not answer: {}", error.unwrap_or("unknown error"))
            }
            Self::Quarantine => {
                let boots = host.failed_boots.as_ref();
                format!(
                    "is quarantined: {} boots in a row failed, the last one: {}",
                    boots.map_or(0, |boots| boots.count),
                    boots.map_or("", |boots| boots.last_error.as_str())
                )
            }
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
    host.backend == Backend::Qemu && host.capacity.has_gpus()
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
        && free.gpus >= need.gpus
        && (spec.gpus == 0 || host.bind_gpus(spec).is_some())
}
