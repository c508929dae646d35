//! The files of a snapshot.
//!
//! The state file holds the VM's configuration as JSON; the memory file is
//! QEMU's migration stream, memory and device state together. Both belong to
//! the emulator and are of no use to the real Firecracker.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::config::VmConfig;

/// Raised when the meaning of the state file or the machine that belongs to it changes.
pub(crate) const FORMAT: u32 = 1;

/// Nothing that calls itself a state file is longer.
const MAX_STATE_BYTES: u64 = 1 << 20;

/// Contents of the state file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// Always [`FORMAT`]; tells such a file from others.
    pub(crate) fc_emulator_snapshot: u32,
    /// `major.minor` of the QEMU that wrote the memory file.
    pub(crate) qemu: String,
    pub(crate) vm: VmConfig,
}

/// Snapshot files that cannot be written or read.
#[derive(Debug, Error)]
pub(crate) enum SnapshotFileError {
    #[error("Cannot write the snapshot file {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("Failed to open the snapshot file {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{} is not a snapshot of this version of fc-emulator (format {FORMAT}); \
         snapshots of Firecracker itself cannot be loaded here", path.display()
    )]
    Format {
        path: PathBuf,
        #[source]
        source: Option<serde_json::Error>,
    },
}

impl State {
    /// The state of a VM that runs under QEMU version `qemu`. What it was booted
    /// from is no part of it: the memory holds the running kernel.
    pub(crate) fn new(qemu: String, vm: &VmConfig) -> Self {
        Self {
            fc_emulator_snapshot: FORMAT,
            qemu,
            vm: VmConfig {
                boot_source: None,
                ..vm.clone()
            },
        }
    }

    /// Writes the state file and makes it durable.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) async fn write(&self, path: &Path) -> Result<(), SnapshotFileError> {
        let result = async {
            let text = serde_json::to_vec_pretty(self)?;
            let mut file = File::create(path).await?;
            file.write_all(&text).await?;
            file.sync_all().await
        };
        result.await.map_err(|source| SnapshotFileError::Write {
            path: path.to_owned(),
            source,
        })
    }

    /// Reads a state file.
    ///
    /// # Errors
    /// The file cannot be read or is something else.
    pub(crate) async fn read(path: &Path) -> Result<Self, SnapshotFileError> {
        let read = async {
            let mut text = Vec::new();
            let file = File::open(path).await?;
            file.take(MAX_STATE_BYTES).read_to_end(&mut text).await?;
            Ok(text)
        };
        let text = read.await.map_err(|source| SnapshotFileError::Open {
            path: path.to_owned(),
            source,
        })?;
        let format = |source| SnapshotFileError::Format {
            path: path.to_owned(),
            source,
        };
        let state: Self = serde_json::from_slice(&text).map_err(|error| format(Some(error)))?;
        if state.fc_emulator_snapshot == FORMAT {
            Ok(state)
        } else {
            Err(format(None))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_state_file_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let state = State::new("7.2".into(), &VmConfig::default());
        state.write(&path).await.unwrap();
        assert_eq!(State::read(&path).await.unwrap(), state);
    }

    #[tokio::test]
    async fn other_files_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let missing = State::read(&path).await;
        assert!(matches!(missing, Err(SnapshotFileError::Open { .. })));
        std::fs::write(&path, b"\x7fELF").unwrap();
        let binary = State::read(&path).await;
        assert!(matches!(binary, Err(SnapshotFileError::Format { .. })));
        let mut state = State::new("7.2".into(), &VmConfig::default());
        state.fc_emulator_snapshot = FORMAT + 1;
        state.write(&path).await.unwrap();
        let newer = State::read(&path).await;
        assert!(matches!(newer, Err(SnapshotFileError::Format { .. })));
    }
}
