//! Events of the stream: one per transition, in one order for the whole fleet.

use jiff::Timestamp;

use crate::{EnvironmentId, EventId, State};

/// A transition that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentEvent {
    /// Its id; the id's sequence is its place in the fleet-wide order, which is
    /// the order of commits.
    pub id: EventId,
    /// Whose transition.
    pub environment_id: EnvironmentId,
    /// The state that was entered.
    pub state: State,
    /// `host:port` of the guest agent, when known.
    pub url: String,
    /// What went wrong, when something did.
    pub error: String,
    /// When.
    pub at: Timestamp,
}
