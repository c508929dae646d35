//! Bodies of the snapshot calls.

use std::path::PathBuf;

use serde::Deserialize;

/// Body of `PUT /snapshot/create`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSnapshot {
    #[serde(default)]
    pub(crate) snapshot_type: SnapshotType,
    /// Gets the configuration of the VM.
    pub(crate) snapshot_path: PathBuf,
    /// Gets memory and device state.
    pub(crate) mem_file_path: PathBuf,
}

/// What a snapshot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum SnapshotType {
    #[default]
    Full,
    Diff,
}

/// `PUT /snapshot/load`, with the deprecated spellings resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadSnapshot {
    pub(crate) snapshot_path: PathBuf,
    pub(crate) mem_backend: MemoryBackend,
    /// Prerequisite of diff snapshots of the loaded VM.
    pub(crate) track_dirty_pages: bool,
    pub(crate) resume_vm: bool,
    pub(crate) network_overrides: Vec<NetworkOverride>,
    pub(crate) vsock_override: Option<VsockOverride>,
}

/// Where the guest's memory comes from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemoryBackend {
    pub(crate) backend_path: PathBuf,
    pub(crate) backend_type: MemoryBackendType,
}

/// Kind of memory backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum MemoryBackendType {
    File,
    /// A process that serves page faults; the emulator cannot use one.
    Uffd,
}

/// Another TAP for an interface of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkOverride {
    pub(crate) iface_id: String,
    pub(crate) host_dev_name: String,
}

/// Another socket path for the vsock device of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VsockOverride {
    pub(crate) uds_path: PathBuf,
}
