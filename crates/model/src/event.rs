//! Events of the stream: one per transition, finished build step or change of a service, in one
//! order for the whole fleet.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{EnvironmentId, EventId, State};

/// How a build step of the startup script ended. Figures only: what a step writes may hold secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReport {
    /// Which step, counted from 1.
    pub index: u32,
    /// How many there are; 0 when that is not known.
    pub total: u32,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Its exit status.
    pub exit_code: i32,
}

/// How a service does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceStatus {
    /// Its container runs.
    Started,
    /// Its own health check passes.
    Healthy,
    /// Its own health check fails.
    Unhealthy,
    /// It ended by itself, with success.
    Exited,
    /// It ended otherwise.
    Failed,
}

impl ServiceStatus {
    /// The word of the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Exited => "exited",
            Self::Failed => "failed",
        }
    }
}

/// What became of a service while the services came up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// Its name in the manifest.
    pub service: String,
    /// How it does now.
    pub status: ServiceStatus,
    /// Since the services began to come up, in milliseconds.
    pub duration_ms: u64,
    /// Its exit status, once it has ended.
    pub exit_code: i32,
}

/// What happened in a guest that is being made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GuestReport {
    /// A step ended.
    Step(StepReport),
    /// A service changed.
    Service(ServiceReport),
}

/// A transition that was committed, or a report out of a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentEvent {
    /// Its id; the id's sequence is its place in the fleet-wide order, which is
    /// the order of commits.
    pub id: EventId,
    /// Whose transition.
    pub environment_id: EnvironmentId,
    /// The state that was entered; with a report, the one it was made in.
    pub state: State,
    /// `host:port` of the guest agent, when known.
    pub url: String,
    /// What went wrong, when something did.
    pub error: String,
    /// A report: then this is no transition.
    pub report: Option<GuestReport>,
    /// When.
    pub at: Timestamp,
}
