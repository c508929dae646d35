//! Events of the stream: one per transition or finished build step, in one order for the
//! whole fleet.

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

/// A transition that was committed, or a step that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentEvent {
    /// Its id; the id's sequence is its place in the fleet-wide order, which is
    /// the order of commits.
    pub id: EventId,
    /// Whose transition.
    pub environment_id: EnvironmentId,
    /// The state that was entered; with a step, the one it ran in.
    pub state: State,
    /// `host:port` of the guest agent, when known.
    pub url: String,
    /// What went wrong, when something did.
    pub error: String,
    /// A step that ended: then this is no transition.
    pub step: Option<StepReport>,
    /// When.
    pub at: Timestamp,
}
