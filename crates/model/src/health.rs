//! The verdict of a guest's probe. It is never a state: an unhealthy environment is a
//! running one.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What the probe thinks of the workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Nothing is known yet.
    Starting,
    /// The last attempts passed.
    Passing,
    /// Too many failed in a row.
    Failing,
}

impl HealthState {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Passing => "passing",
            Self::Failing => "failing",
        }
    }
}

/// A verdict as the guest writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// What it is.
    pub state: HealthState,
    /// Since when.
    pub since: Timestamp,
    /// Failures in a row.
    #[serde(default)]
    pub failures: u32,
    /// What the last failure said.
    #[serde(default)]
    pub message: String,
}

/// Whether an environment is probed, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Probe {
    /// It was created without a healthcheck.
    #[default]
    None,
    /// No verdict was read yet.
    Waiting,
    /// The last one.
    Verdict(Health),
}

impl Probe {
    /// Whether there is a probe.
    pub const fn is_set(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Whether the workload is known to fail its probe.
    pub const fn is_failing(&self) -> bool {
        matches!(
            self,
            Self::Verdict(Health {
                state: HealthState::Failing,
                ..
            })
        )
    }

    /// The last verdict.
    pub const fn verdict(&self) -> Option<&Health> {
        match self {
            Self::Verdict(health) => Some(health),
            Self::None | Self::Waiting => None,
        }
    }
}
