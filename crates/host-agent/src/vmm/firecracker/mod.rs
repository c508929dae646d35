//! Driver for Firecracker, and for whatever serves Firecracker's API on a socket.
//!
//! One process per VM. The machine is described by PUT calls in Firecracker's order and started by
//! an action; two drives (base read-only, overlay), one network device, one vsock device, whose
//! Unix socket is the channel to the guest.

mod api;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::process::{Process, ProcessId, spawn_detached};
use super::sockets::{self, unless_ended};
use super::{Limits, MachineSpec, Sockets, Vmm, VmmError};
use crate::guest::{Transport, VsockTransport};
use crate::snapshot::Files;

/// How long the program may take to pause the machine.
const STATE_LIMIT: Duration = Duration::from_secs(20);
/// Most vCPUs of a Firecracker machine.
const MAX_CPUS: u32 = 32;
/// The guest's address on its vsock. Each process has a vsock of its own, so all may share it.
const GUEST_CID: u32 = 3;

/// The driver.
#[derive(Debug, Clone)]
pub struct Firecracker {
    program: PathBuf,
    socket_dir: PathBuf,
    memory_limit: Duration,
}

impl Firecracker {
    /// Drives `program`, with sockets in `socket_dir`; it may take `memory_limit` to write or load
    /// the memory of a guest.
    #[must_use]
    pub fn new(program: PathBuf, socket_dir: PathBuf, memory_limit: Duration) -> Self {
        Self {
            program,
            socket_dir,
            memory_limit,
        }
    }
}

#[async_trait]
impl Vmm for Firecracker {
    fn limits(&self) -> Limits {
        Limits {
            max_cpus: MAX_CPUS,
            snapshots: true,
            told_at_start: false,
        }
    }

    fn sockets(&self, vm_id: &str, _dir: &Path) -> Sockets {
        sockets::of(&self.socket_dir, vm_id)
    }

    fn socket_files(&self, sockets: &Sockets) -> Vec<PathBuf> {
        sockets::files(sockets)
    }

    fn transport(&self, sockets: &Sockets) -> Arc<dyn Transport> {
        Arc::new(VsockTransport::new(sockets.channel.clone()))
    }

    fn spawn(&self, spec: &MachineSpec) -> Result<ProcessId, VmmError> {
        let mut command = Command::new(&self.program);
        command
            .arg("--api-sock")
            .arg(&spec.sockets.api)
            .args(["--id", &sockets::process_id(&spec.vm_id)]);
        spawn_detached(&mut command, &spec.log).map_err(|source| VmmError::Start {
            program: self.program.clone(),
            source,
        })
    }

    async fn open(&self, spec: &MachineSpec, process: &Process) -> Result<(), VmmError> {
        sockets::wait_open(spec, process).await
    }

    async fn configure(&self, spec: &MachineSpec, process: &Process) -> Result<(), VmmError> {
        unless_ended(spec, process, describe(spec)).await
    }

    async fn boot(&self, spec: &MachineSpec) -> Result<(), VmmError> {
        api::start(&spec.sockets.api).await
    }

    async fn pause(&self, sockets: &Sockets) -> Result<(), VmmError> {
        api::set_state(&sockets.api, "Paused", STATE_LIMIT).await
    }

    async fn resume(&self, sockets: &Sockets, within: Duration) -> Result<(), VmmError> {
        api::set_state(&sockets.api, "Resumed", within).await
    }

    async fn save(&self, sockets: &Sockets, to: &Files) -> Result<(), VmmError> {
        let body = json!({
            "snapshot_type": "Full",
            "snapshot_path": to.vmstate(),
            "mem_file_path": to.memory(),
        });
        let path = "/snapshot/create";
        api::put_within(&sockets.api, path, &body, self.memory_limit).await
    }

    async fn load(
        &self,
        spec: &MachineSpec,
        process: &Process,
        from: &Files,
    ) -> Result<(), VmmError> {
        let body = json!({
            "snapshot_path": from.vmstate(),
            "mem_backend": {"backend_type": "File", "backend_path": from.memory()},
            "resume_vm": true,
        });
        let path = "/snapshot/load";
        let load = api::put_within(&spec.sockets.api, path, &body, self.memory_limit);
        unless_ended(spec, process, load).await
    }

    async fn serves(&self, sockets: &Sockets) -> bool {
        tokio::net::UnixStream::connect(&sockets.api).await.is_ok()
    }
}

/// The calls of a cold boot, in the order that Firecracker documents.
async fn describe(spec: &MachineSpec) -> Result<(), VmmError> {
    let socket = &spec.sockets.api;
    let boot = json!({
        "kernel_image_path": spec.boot.kernel,
        "initrd_path": spec.boot.initrd,
        "boot_args": spec.boot.cmdline,
    });
    api::put(socket, "/boot-source", &boot).await?;
    let base = json!({
        "drive_id": "rootfs",
        "path_on_host": spec.base,
        // The initramfs mounts the disks; a root device would only add a `root=` of its own.
        "is_root_device": false,
        "is_read_only": true,
    });
    api::put(socket, "/drives/rootfs", &base).await?;
    let overlay = json!({
        "drive_id": "overlay",
        "path_on_host": spec.overlay,
        "is_root_device": false,
        "is_read_only": false,
    });
    api::put(socket, "/drives/overlay", &overlay).await?;
    if let Some(nic) = &spec.nic {
        let nic = json!({
            "iface_id": "eth0",
            "host_dev_name": nic.tap,
            "guest_mac": nic.mac.to_string(),
        });
        api::put(socket, "/network-interfaces/eth0", &nic).await?;
    }
    let vsock = json!({"guest_cid": GUEST_CID, "uds_path": spec.sockets.channel});
    api::put(socket, "/vsock", &vsock).await?;
    let mut machine = json!({
        "vcpu_count": spec.cpus,
        "mem_size_mib": spec.memory_mib,
        // Can only be set before the first boot, and incremental snapshots need it.
        "track_dirty_pages": true,
    });
    if spec.huge_pages {
        machine["huge_pages"] = json!("2M");
    }
    api::put(socket, "/machine-config", &machine).await
}

#[cfg(test)]
mod tests;
