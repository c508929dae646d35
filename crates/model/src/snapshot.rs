//! Snapshots: what an environment's disk (and memory) was at a moment, kept on the host
//! that took it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::{EnvironmentId, HostId, SnapshotId};

/// Where a snapshot is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotState {
    /// Being taken.
    Creating,
    /// Whole and usable.
    Ready,
    /// Being put in place of its environment.
    Restoring,
    /// Being deleted; retried until its host agrees.
    Deleting,
    /// Something went wrong with it; `last_error` says what.
    Error,
}

impl SnapshotState {
    /// Every state.
    pub const ALL: [Self; 5] = [
        Self::Creating,
        Self::Ready,
        Self::Restoring,
        Self::Deleting,
        Self::Error,
    ];

    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Restoring => "restoring",
            Self::Deleting => "deleting",
            Self::Error => "error",
        }
    }
}

named!(SnapshotState, "snapshot state");

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SnapshotKind {
    /// The disk.
    Disk,
    /// Disk, memory and processors, of one moment.
    Live,
}

impl SnapshotKind {
    const ALL: [Self; 2] = [Self::Disk, Self::Live];

    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Live => "live",
        }
    }
}

named!(SnapshotKind, "snapshot kind");

/// A copy of a snapshot elsewhere, as somebody recorded it; nothing here makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotExport {
    /// Where to.
    pub destination: String,
    /// `pending`, or what the recorder says.
    pub status: String,
    /// When it was recorded.
    pub requested_at: Timestamp,
    /// When the record last changed.
    pub updated_at: Timestamp,
    /// Why it failed; empty when it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}

/// The record of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id, chosen by the host.
    pub id: SnapshotId,
    /// The environment that it was taken of; `None` for a copied artifact.
    pub environment_id: Option<EnvironmentId>,
    /// The environment's task; empty when there was none.
    pub task_id: String,
    /// Where its bytes are; `None` on the default backend.
    pub host_id: Option<HostId>,
    /// Whose quota it counts against: a layer's API key, else the task, else the environment.
    pub tenant: String,
    /// Who made it: an API key's id, empty for the master.
    pub owner: String,
    /// The snapshot of the same environment before it; empty when it is the first.
    pub parent_id: String,
    /// `manual`, `auto`, `build`, or the caller's own word.
    pub mode: String,
    /// Where it is in its life.
    pub state: SnapshotState,
    /// What it holds.
    pub kind: SnapshotKind,
    /// Key of the build layer that it is; empty when it is none.
    pub layer_key: String,
    /// Architecture of its host; empty when unknown.
    pub arch: String,
    /// SHA-256 of its disk in hex; empty when the host did not say.
    pub digest: String,
    /// SHA-256 in hex of the base image that its disk belongs to; empty when the host did not say.
    pub base_digest: String,
    /// Size of its disk on the host.
    pub size_bytes: u64,
    /// When it may be collected; `None` = never.
    pub retention_until: Option<Timestamp>,
    /// What the caller wants to remember; `name` and `comment` have a meaning.
    pub metadata: BTreeMap<String, String>,
    /// Recorded copies.
    pub exports: Vec<SnapshotExport>,
    /// Last failure; empty when there was none.
    pub last_error: String,
    /// When it was taken.
    pub created_at: Timestamp,
    /// When its record last changed.
    pub updated_at: Timestamp,
}

impl Snapshot {
    /// Mode of build layers, which quota and retention leave alone.
    pub const BUILD: &'static str = "build";

    /// Whether it is a layer, or a copy, which may be collected when nobody uses it.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.mode == Self::BUILD && (!self.layer_key.is_empty() || self.environment_id.is_none())
    }

    /// A text of the metadata; empty when it is not there.
    #[must_use]
    pub fn meta(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }
}
