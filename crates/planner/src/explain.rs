//! What placement thinks of every host, for people who ask why.

use std::cmp::Reverse;

use fuse_model::{EnvironmentSpec, Host, HostId};

use crate::gate::Gate;
use crate::placement::{Policy, score};

/// What became of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It can take the environment; 1 is where it would go.
    Eligible {
        /// Place in the order of preference.
        rank: usize,
    },
    /// Another host is pinned.
    NotPinned,
    /// A gate turned it away.
    Rejected {
        /// The gate.
        gate: Gate,
        /// Its text, to stand after the host's name.
        reason: String,
    },
}

/// A host with its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained<'a> {
    /// The host.
    pub host: &'a Host,
    /// Free room as placement counts it.
    pub score: i64,
    /// What became of it.
    pub verdict: Verdict,
}

/// Every host with its verdict: eligible ones first in the order of preference, then
/// the others by id. The first one is where [`crate::place`] would put `spec`.
pub fn explain<'a>(
    spec: &EnvironmentSpec,
    hosts: &'a [Host],
    policy: Policy,
    holders: &[HostId],
) -> Vec<Explained<'a>> {
    let (mut eligible, mut others) = (Vec::new(), Vec::new());
    for host in hosts {
        let verdict = match Gate::first_rejecting(spec, host) {
            _ if spec.host_id.as_ref().is_some_and(|pin| *pin != host.id) => Verdict::NotPinned,
            Some(gate) => Verdict::Rejected {
                gate,
                reason: gate.reason(spec, host),
            },
            None => Verdict::Eligible { rank: 0 },
        };
        let explained = Explained {
            host,
            score: score(host),
            verdict,
        };
        match explained.verdict {
            Verdict::Eligible { .. } => eligible.push(explained),
            Verdict::NotPinned | Verdict::Rejected { .. } => others.push(explained),
        }
    }
    others.sort_by(|a, b| a.host.id.cmp(&b.host.id));
    eligible.sort_by(|a, b| a.host.id.cmp(&b.host.id));
    match policy {
        Policy::Spread => eligible.sort_by_key(|explained| Reverse(explained.score)),
        Policy::Binpack => eligible.sort_by_key(|explained| explained.score),
    }
    // Stable: among themselves they stay as they are.
    eligible.sort_by_key(|explained| !holders.contains(&explained.host.id));
    for (at, explained) in eligible.iter_mut().enumerate() {
        explained.verdict = Verdict::Eligible { rank: at + 1 };
    }
    eligible.append(&mut others);
    eligible
}
