//! Bringing a VM back from a snapshot.

use std::io;
use std::path::{Path, PathBuf};

use fuse_qemu::QmpError;
use fuse_qemu::commands::{GetFd, MigrateIncoming};
use thiserror::Error;

use super::{RunState, StartError, Vm, launch};
use crate::config::{ConfigError, LoadSnapshot, MemoryBackendType, VmConfig};
use crate::host::HostParts;
use crate::qemu::{Exit, Qemu, Start};
use crate::snapshot::{SnapshotFileError, State};

/// A snapshot that was not brought back.
#[derive(Debug, Error)]
pub(crate) enum LoadError {
    #[error("Loading a microVM snapshot not allowed after configuring boot-specific resources.")]
    NotFresh,
    #[error("Failed to restore from snapshot")]
    State(#[from] SnapshotFileError),
    #[error(
        "Failed to restore from snapshot: Uffd backends are not available in fc-emulator; use a File backend"
    )]
    Uffd,
    #[error("Failed to restore from snapshot: The snapshot has no network interface {id}")]
    UnknownInterface { id: String },
    #[error("Failed to restore from snapshot: The snapshot has no vsock device")]
    NoVsock,
    #[error("Failed to restore from snapshot")]
    Host(#[source] ConfigError),
    #[error("Failed to restore from snapshot")]
    Start(#[from] StartError),
    #[error(
        "Failed to restore from snapshot: It was taken with QEMU {written}, and this host has \
         {present}; load it where QEMU {written} is installed"
    )]
    OtherQemu { written: String, present: String },
    #[error("Failed to restore from snapshot: Cannot open the memory file {}", path.display())]
    Memory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("Failed to restore from snapshot: {reason}")]
    Failed { reason: String },
    #[error("Failed to resume microVM")]
    Resume(#[source] QmpError),
}

impl Vm {
    /// Brings the VM of a snapshot back, paused or running as asked.
    ///
    /// # Errors
    /// The files are none of a snapshot, the host lacks what the VM needs, or
    /// QEMU does not take it.
    pub(crate) async fn load(request: &LoadSnapshot) -> Result<Self, LoadError> {
        match request.mem_backend.backend_type {
            MemoryBackendType::File => {}
            MemoryBackendType::Uffd => return Err(LoadError::Uffd),
        }
        let state = State::read(&request.snapshot_path).await?;
        let config = overridden(state.vm, request)?;
        let mut parts = HostParts::take(&config).map_err(LoadError::Host)?;
        let (mut qemu, vsock) = launch(&config, &parts, Start::Incoming).await?;
        let present = qemu.qmp.version();
        if present != state.qemu {
            let written = state.qemu;
            return Err(LoadError::OtherQemu { written, present });
        }
        read_memory(&mut qemu, &request.mem_backend.backend_path).await?;
        let paused = RunState::Paused { memory: None };
        let mut vm = Self::assemble(qemu, config, paused, &mut parts, vsock);
        if request.resume_vm {
            vm.resume().await.map_err(LoadError::Resume)?;
        }
        Ok(vm)
    }
}

/// The configuration with what the request has otherwise than the snapshot.
fn overridden(mut config: VmConfig, request: &LoadSnapshot) -> Result<VmConfig, LoadError> {
    config.machine.track_dirty_pages = request.track_dirty_pages;
    for other in &request.network_overrides {
        let mut interfaces = config.networks.iter_mut();
        let Some(interface) = interfaces.find(|known| known.iface_id == other.iface_id) else {
            let id = other.iface_id.clone();
            return Err(LoadError::UnknownInterface { id });
        };
        interface.host_dev_name.clone_from(&other.host_dev_name);
    }
    if let Some(other) = &request.vsock_override {
        let vsock = config.vsock.as_mut().ok_or(LoadError::NoVsock)?;
        vsock.uds_path.clone_from(&other.uds_path);
    }
    Ok(config)
}

async fn read_memory(qemu: &mut Qemu, path: &Path) -> Result<(), LoadError> {
    let file = std::fs::File::open(path).map_err(|source| LoadError::Memory {
        path: path.to_owned(),
        source,
    })?;
    let fdname = "snapshot";
    let uri = "fd:snapshot";
    let outcome = match qemu.qmp.execute_with_fd(GetFd { fdname }, &file).await {
        Ok(_) => qemu.qmp.migrate(MigrateIncoming { uri }).await,
        Err(error) => Err(error),
    };
    let reason = match outcome {
        Ok(true) => return Ok(()),
        // QEMU gives up by itself and says why on its way out.
        Ok(false) | Err(QmpError::Closed { .. }) => match qemu.wait().await {
            Exit::Guest { reason } => reason,
            Exit::Died { what } => what,
        },
        Err(error) => error.to_string(),
    };
    Err(LoadError::Failed { reason })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{MemoryBackend, NetworkOverride, VsockOverride};

    fn request() -> LoadSnapshot {
        LoadSnapshot {
            snapshot_path: "s".into(),
            mem_backend: MemoryBackend {
                backend_path: "m".into(),
                backend_type: MemoryBackendType::File,
            },
            track_dirty_pages: true,
            resume_vm: false,
            network_overrides: Vec::new(),
            vsock_override: None,
        }
    }

    #[test]
    fn overrides_replace_taps_and_sockets() {
        let interface = json!({"iface_id": "eth0", "host_dev_name": "old"});
        let vsock = json!({"guest_cid": 3, "uds_path": "/old"});
        let config = VmConfig {
            networks: vec![serde_json::from_value(interface).unwrap()],
            vsock: Some(serde_json::from_value(vsock).unwrap()),
            ..VmConfig::default()
        };
        let mut request = request();
        request.network_overrides = vec![NetworkOverride {
            iface_id: "eth0".into(),
            host_dev_name: "new".into(),
        }];
        request.vsock_override = Some(VsockOverride {
            uds_path: "/new".into(),
        });
        let config = overridden(config, &request).unwrap();
        assert_eq!(config.networks[0].host_dev_name, "new");
        assert_eq!(config.vsock.unwrap().uds_path, Path::new("/new"));
        assert!(config.machine.track_dirty_pages);
    }

    #[test]
    fn overrides_of_what_is_not_there_are_refused() {
        let mut wrong = request();
        wrong.network_overrides = vec![NetworkOverride {
            iface_id: "eth0".into(),
            host_dev_name: "new".into(),
        }];
        let result = overridden(VmConfig::default(), &wrong);
        assert!(matches!(result, Err(LoadError::UnknownInterface { .. })));
        let mut wrong = request();
        wrong.vsock_override = Some(VsockOverride {
            uds_path: "/new".into(),
        });
        assert!(matches!(
            overridden(VmConfig::default(), &wrong),
            Err(LoadError::NoVsock)
        ));
    }
}
