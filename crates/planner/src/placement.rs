//! Placement: which hosts can take an environment, best first.
//!
//! A pure function over a snapshot of hosts. The store guards the charge with
//! the host's row, so the answer may be out of date: the caller tries the
//! candidates in order. One pass over the hosts, no allocation per host, and a
//! bounded list of candidates keep it under a millisecond for 10,000 hosts.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::str::FromStr;

use fuse_model::{EnvironmentSpec, ErrorKind, Host, HostId, UnknownName};
use thiserror::Error;

use crate::gate::{self, Gate};

/// Most candidates that an answer carries. A charge fails only when another
/// request took the last of a host in the moment between; past this many such
/// losses, placing anew beats going down an old list.
const MAX_CANDIDATES: usize = 16;

/// What a free vCPU counts against a free MiB in the score.
const CPU_WEIGHT: i64 = 10_000;

/// Which of the eligible hosts is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Policy {
    /// The host with the most free.
    #[default]
    Spread,
    /// The host with the least free.
    Binpack,
}

impl Policy {
    /// The name in settings and audit entries.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::Binpack => "binpack",
        }
    }
}

/// Empty text means the default.
impl FromStr for Policy {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" | "spread" => Ok(Self::Spread),
            "binpack" => Ok(Self::Binpack),
            _ => Err(UnknownName::new("placement policy", text)),
        }
    }
}

/// A host that can take the environment, and what it would have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The host.
    pub host: &'a Host,
    /// Its score before placement, not negated by the policy.
    pub score: i64,
    /// vCPUs left after placement.
    pub headroom_cpus: i32,
    /// MiB left after placement.
    pub headroom_ram_mb: i32,
}

/// Where an environment can go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement<'a> {
    /// What the order follows.
    pub policy: Policy,
    /// The best hosts, best first; never empty.
    pub candidates: Vec<Candidate<'a>>,
    /// How many hosts are eligible, those not listed included.
    pub eligible: usize,
}

/// How many hosts each gate turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rejections {
    counts: [usize; Gate::ALL.len()],
}

impl Rejections {
    /// Hosts turned away by `gate`.
    pub const fn by(&self, gate: Gate) -> usize {
        self.counts[gate as usize]
    }

    /// The gates that turned any host away, in order of checks.
    pub fn iter(&self) -> impl Iterator<Item = (Gate, usize)> + '_ {
        Gate::ALL
            .into_iter()
            .zip(self.counts)
            .filter(|(_, count)| *count > 0)
    }

    fn note(&mut self, gate: Gate) {
        self.counts[gate as usize] += 1;
    }
}

/// Why an environment cannot be placed. The texts are wire texts.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// The fleet has no hosts.
    #[error("no hosts registered")]
    NoHosts,
    /// The pin names no host of the fleet.
    #[error("host not found: placement.host \"{0}\" is not registered")]
    PinUnknown(HostId),
    /// The pinned host does not take it.
    #[error("pinned host cannot take this environment: host \"{host}\" {reason}")]
    PinRejected {
        /// The host.
        host: HostId,
        /// The gate that turned it away.
        gate: Gate,
        /// That gate's text.
        reason: String,
    },
    /// No host that takes placements has the labels.
    #[error(
        "no host matches the requested placement labels: {labels} matched none of {schedulable} schedulable hosts"
    )]
    NoLabelMatch {
        /// What was asked for, `k=v,...`.
        labels: String,
        /// Hosts that take placements.
        schedulable: usize,
        /// What turned the hosts away.
        rejections: Rejections,
    },
    /// GPUs were asked for and no host that takes placements has any.
    #[error(
        "no host has sufficient capacity: need {need}, and none of {schedulable} schedulable hosts serves gpus"
    )]
    NoGpuHost {
        /// The GPUs that were asked for.
        need: String,
        /// Hosts that take placements.
        schedulable: usize,
        /// What turned the hosts away.
        rejections: Rejections,
    },
    /// Nothing fits.
    #[error("no host has sufficient capacity: need {need}, no eligible host fits")]
    NoCapacity {
        /// What was asked for.
        need: String,
        /// What turned the hosts away.
        rejections: Rejections,
    },
}

impl PlacementError {
    /// The kind that the control plane answers with.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::PinUnknown(_) => ErrorKind::NotFound,
            Self::NoHosts
            | Self::PinRejected { .. }
            | Self::NoLabelMatch { .. }
            | Self::NoGpuHost { .. }
            | Self::NoCapacity { .. } => ErrorKind::NoCapacity,
        }
    }

    /// What turned the hosts away, where the whole fleet was considered.
    pub const fn rejections(&self) -> Option<&Rejections> {
        match self {
            Self::NoHosts | Self::PinUnknown(_) | Self::PinRejected { .. } => None,
            Self::NoLabelMatch { rejections, .. }
            | Self::NoGpuHost { rejections, .. }
            | Self::NoCapacity { rejections, .. } => Some(rejections),
        }
    }
}

/// Picks the hosts that can take `spec`, best first: `holders`, which have the bytes that
/// it starts from, come before all others, then by `policy`, ties by the smallest id.
///
/// # Errors
/// No host can take it; the error says why.
pub fn place<'a>(
    spec: &EnvironmentSpec,
    hosts: &'a [Host],
    policy: Policy,
    holders: &[HostId],
) -> Result<Placement<'a>, PlacementError> {
    if let Some(pin) = &spec.host_id {
        return place_pinned(spec, pin, hosts, policy);
    }
    if hosts.is_empty() {
        return Err(PlacementError::NoHosts);
    }
    let mut rejections = Rejections::default();
    let mut best = BinaryHeap::with_capacity(MAX_CANDIDATES);
    let mut eligible = 0;
    for host in hosts {
        if let Some(gate) = Gate::first_rejecting(spec, host) {
            rejections.note(gate);
            continue;
        }
        eligible += 1;
        let ranked = Ranked::new(host, policy, holders);
        if best.len() < MAX_CANDIDATES {
            best.push(ranked);
        } else if let Some(mut worst) = best.peek_mut()
            && ranked < *worst
        {
            *worst = ranked;
        }
    }
    if eligible == 0 {
        return Err(refusal(spec, hosts, rejections));
    }
    let candidates = best
        .into_sorted_vec()
        .into_iter()
        .map(|ranked| candidate(spec, ranked.host))
        .collect();
    Ok(Placement {
        policy,
        candidates,
        eligible,
    })
}

fn place_pinned<'a>(
    spec: &EnvironmentSpec,
    pin: &HostId,
    hosts: &'a [Host],
    policy: Policy,
) -> Result<Placement<'a>, PlacementError> {
    let host = hosts
        .iter()
        .find(|host| host.id == *pin)
        .ok_or_else(|| PlacementError::PinUnknown(pin.clone()))?;
    match Gate::first_rejecting(spec, host) {
        Some(gate) => Err(PlacementError::PinRejected {
            host: pin.clone(),
            gate,
            reason: gate.reason(spec, host),
        }),
        None => Ok(Placement {
            policy,
            candidates: vec![candidate(spec, host)],
            eligible: 1,
        }),
    }
}

/// Picks the text for a fleet in which no host passed all gates.
fn refusal(spec: &EnvironmentSpec, hosts: &[Host], rejections: Rejections) -> PlacementError {
    let schedulable = || hosts.iter().filter(|host| Gate::closed(host).is_none());
    if !spec.labels.is_empty() && !schedulable().any(|host| gate::has_labels(spec, host)) {
        return PlacementError::NoLabelMatch {
            labels: gate::pairs(spec.labels.iter()),
            schedulable: schedulable().count(),
            rejections,
        };
    }
    if spec.gpus == 0 {
        return PlacementError::NoCapacity {
            need: gate::need(spec),
            rejections,
        };
    }
    if !schedulable().any(gate::serves_gpus) {
        return PlacementError::NoGpuHost {
            need: gate::need_gpus(spec),
            schedulable: schedulable().count(),
            rejections,
        };
    }
    PlacementError::NoCapacity {
        need: format!("{} + {}", gate::need(spec), gate::need_gpus(spec)),
        rejections,
    }
}

pub(crate) fn score(host: &Host) -> i64 {
    let free = host.free();
    i64::from(free.cpus) * CPU_WEIGHT + i64::from(free.ram_mb)
}

fn candidate<'a>(spec: &EnvironmentSpec, host: &'a Host) -> Candidate<'a> {
    let free = host.free();
    Candidate {
        host,
        score: score(host),
        headroom_cpus: free.cpus.saturating_sub(spec.cpus),
        headroom_ram_mb: free.ram_mb.saturating_sub(spec.ram_mb),
    }
}

/// A host in the order of preference: the least is the best.
struct Ranked<'a> {
    /// Whether the seed has to be brought there; `false` comes first.
    is_away: bool,
    rank: i64,
    host: &'a Host,
}

impl<'a> Ranked<'a> {
    fn new(host: &'a Host, policy: Policy, holders: &[HostId]) -> Self {
        let rank = match policy {
            Policy::Spread => -score(host),
            Policy::Binpack => score(host),
        };
        Self {
            is_away: !holders.contains(&host.id),
            rank,
            host,
        }
    }
}

impl Ord for Ranked<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.is_away, self.rank, &self.host.id).cmp(&(other.is_away, other.rank, &other.host.id))
    }
}

impl PartialOrd for Ranked<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked<'_> {}

#[cfg(test)]
mod tests;
