//! Taking a snapshot of a paused VM.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};

use fuse_qemu::QmpError;
use fuse_qemu::commands::{GetFd, Migrate, MigrateSetParameters, QueryMigrate};
use thiserror::Error;

use super::{RunState, Vm};
use crate::config::{CreateSnapshot, SnapshotType};
use crate::snapshot::{SnapshotFileError, State};

/// Bytes per second: none that a disk could reach. The guest waits meanwhile,
/// so there is nothing to share the host with.
const MAX_BANDWIDTH: u64 = 1 << 40;

/// A snapshot that was not taken. Files that the VM already had are as they were.
#[derive(Debug, Error)]
pub(crate) enum CreateSnapshotError {
    #[error(
        "Cannot save the microVM state: Operation not allowed: \
         save/restore unavailable while running"
    )]
    Running,
    #[error("Diff snapshots are not available in fc-emulator; take a Full one")]
    Diff,
    #[error("Cannot save the microVM state")]
    Monitor(#[from] QmpError),
    #[error("Cannot save the microVM state: {reason}")]
    Failed { reason: String },
    #[error("Cannot write the memory file {}", path.display())]
    Memory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("Cannot save the microVM state")]
    State(#[from] SnapshotFileError),
}

impl Vm {
    /// Writes a full snapshot. The VM stays paused.
    ///
    /// # Errors
    /// It runs, or the files cannot be written.
    pub(crate) async fn create_snapshot(
        &mut self,
        request: &CreateSnapshot,
    ) -> Result<(), CreateSnapshotError> {
        match request.snapshot_type {
            SnapshotType::Full => {}
            SnapshotType::Diff => return Err(CreateSnapshotError::Diff),
        }
        if let RunState::Running = self.state {
            return Err(CreateSnapshotError::Running);
        }
        let target = &request.mem_file_path;
        let partial = partial_path(target);
        let result = self.write_memory(&partial, target).await;
        if result.is_err() {
            remove(&partial);
            return result;
        }
        let state = State::new(self.qemu.qmp.version(), &self.config);
        state.write(&request.snapshot_path).await.map_err(|error| {
            remove(target);
            error.into()
        })
    }

    /// Writes memory and device state to `partial` and moves that to `target`.
    ///
    /// QEMU saves a machine only once between two stretches of running. The
    /// guest cannot have changed since, so a second snapshot is a copy of the first.
    async fn write_memory(
        &mut self,
        partial: &Path,
        target: &Path,
    ) -> Result<(), CreateSnapshotError> {
        let trouble = |source| CreateSnapshotError::Memory {
            path: target.to_owned(),
            source,
        };
        let file = create(partial).map_err(trouble)?;
        let earlier = match &self.state {
            RunState::Paused {
                memory: Some(first),
            } => Some(first.try_clone().map_err(trouble)?),
            RunState::Paused { memory: None } | RunState::Running => None,
        };
        let kept = file.try_clone().map_err(trouble)?;
        if earlier.is_none() {
            self.save_machine(&file).await?;
            self.state = RunState::Paused { memory: Some(kept) };
        }
        let finish = move || -> io::Result<()> {
            if let Some(mut first) = earlier {
                first.rewind()?;
                io::copy(&mut first, &mut &file)?;
            }
            file.sync_all()
        };
        let finished = tokio::task::spawn_blocking(finish).await;
        finished
            .map_err(io::Error::other)
            .flatten()
            .map_err(trouble)?;
        std::fs::rename(partial, target).map_err(trouble)
    }

    async fn save_machine(&mut self, file: &File) -> Result<(), CreateSnapshotError> {
        let qmp = &mut self.qemu.qmp;
        let max_bandwidth = MAX_BANDWIDTH;
        qmp.execute(MigrateSetParameters { max_bandwidth }).await?;
        let fdname = "snapshot";
        qmp.execute_with_fd(GetFd { fdname }, file).await?;
        let uri = "fd:snapshot";
        if qmp.migrate(Migrate { uri }).await? {
            return Ok(());
        }
        let info = qmp.execute(QueryMigrate {}).await?;
        Err(CreateSnapshotError::Failed {
            reason: info
                .error_desc
                .unwrap_or_else(|| "QEMU gives no reason".to_owned()),
        })
    }
}

/// Beside `target`, so that it can be renamed to it.
fn partial_path(target: &Path) -> PathBuf {
    let mut path = target.as_os_str().to_owned();
    path.push(".partial");
    path.into()
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "nothing to remove");
    }
}
