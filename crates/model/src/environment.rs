//! The record of an environment: one microVM and the task in it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{EnvironmentId, EnvironmentSpec, HostId, Operation, Probe, State, TaskId};

/// Counts the writes to a record. Every write names the version that it is
/// based on and is refused when the record has moved on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub i64);

impl Version {
    /// The version of a record that was just made.
    pub const FIRST: Self = Self(1);

    /// The version after one more write.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A published port of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The caller's name for it; empty when none was given.
    #[serde(rename = "as", default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `host:port` to dial.
    pub url: String,
    /// The port inside the guest.
    pub port: u16,
    /// Transport that was really published; empty when the agent did not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub protocol: String,
}

/// An environment as stored: what was asked for (`spec`), what is known of it
/// (`state` and what follows) and what is being done to it (`operation`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// Its id, which is the VM's name on the host.
    pub id: EnvironmentId,
    /// Writes so far.
    pub version: Version,
    /// What was asked for.
    pub spec: EnvironmentSpec,
    /// Who asked: empty for the master token, else the API key's id.
    pub tenant: String,
    /// The task in it; `None` once teardown has started.
    pub task_id: Option<TaskId>,
    /// Where it is in its life.
    pub state: State,
    /// The host that it is charged to; `None` on the default backend.
    pub host_id: Option<HostId>,
    /// `host:port` of the guest agent; empty before `running`.
    pub url: String,
    /// Published ports.
    pub endpoints: Vec<Endpoint>,
    /// The guest kernel's id of the boot that was set up: another one means that the
    /// guest has lost what was written into its memory. Empty when unknown.
    pub boot_id: String,
    /// Release of the agent in its guest; empty when unknown.
    pub guest_version: String,
    /// Whether its workload is probed, and the last verdict.
    pub probe: Probe,
    /// Last failure text, safe to show; empty when there is none.
    pub error: String,
    /// What is being done to it, by whom.
    pub operation: Option<Operation>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When somebody last used it.
    pub activity_at: Timestamp,
}
