//! What is stored of a snapshot.

use std::path::PathBuf;

use fuse_wire_host::{Snapshot, SnapshotKind};
use serde::{Deserialize, Serialize};

use crate::net::Index;

/// Name of the copied disk.
const OVERLAY: &str = "overlay.img";
/// Names of the machine's state and memory.
const VMSTATE: &str = "vmstate";
const MEMORY: &str = "mem";

/// `meta.json` of a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// What callers see of it.
    #[serde(flatten)]
    pub view: Snapshot,
    /// Size of the disk in GiB.
    pub storage_gb: u32,
    /// Number of the VM it was taken of: addresses and device of a live one are part of its memory.
    pub index: Index,
    /// The boot that the guest was in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Release of the agent in the guest, which a live snapshot keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_version: Option<String>,
    /// Blocks of the disk's sparse form; absent in records of older agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u64>,
    /// The agent that it was pulled from; absent for one that was taken here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_peer: Option<String>,
}

/// Files of a snapshot, below its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    dir: PathBuf,
}

impl Files {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The copied disk.
    #[must_use]
    pub fn overlay(&self) -> PathBuf {
        self.dir.join(OVERLAY)
    }

    /// The machine's state; only of a live snapshot.
    #[must_use]
    pub fn vmstate(&self) -> PathBuf {
        self.dir.join(VMSTATE)
    }

    /// The machine's memory; only of a live snapshot.
    #[must_use]
    pub fn memory(&self) -> PathBuf {
        self.dir.join(MEMORY)
    }

    pub(crate) fn of_kind(&self, kind: SnapshotKind) -> Vec<PathBuf> {
        match kind {
            SnapshotKind::Disk => vec![self.overlay()],
            SnapshotKind::Live => vec![self.overlay(), self.vmstate(), self.memory()],
        }
    }
}
