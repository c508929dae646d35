//! Driver for Firecracker, and for whatever serves Firecracker's API on a socket.
//!
//! One process per VM. The machine is described by PUT calls in Firecracker's order and started by
//! an action (behind a jailer the same, with the names that files have in the jail); two drives (base read-only, overlay), one network device, one vsock device, whose
//! Unix socket is the channel to the guest.

mod api;
mod jail;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::process::{Process, ProcessId, spawn_detached};
use super::sockets::{self, unless_ended};
use super::{Limits, MachineSpec, Sockets, Vmm, VmmError};
use crate::guest::{Transport, VsockTransport};
use crate::net::Index;
use crate::snapshot::Files;
use crate::unix_socket;
pub use jail::Jailer;
use jail::{Jail, Right};

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
    jailer: Option<Jailer>,
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
            jailer: None,
        }
    }

    /// The same behind a jailer.
    #[must_use]
    pub fn jailed(self, jailer: Jailer) -> Self {
        Self {
            jailer: Some(jailer),
            ..self
        }
    }

    fn jail(&self, spec: &MachineSpec) -> Option<Jail> {
        let jailer = self.jailer.as_ref()?;
        Some(jailer.jail(&self.program, &spec.vm_id, spec.number))
    }

    fn command(&self, spec: &MachineSpec) -> Result<Command, VmmError> {
        if let (Some(jailer), Some(jail)) = (&self.jailer, self.jail(spec)) {
            jail.prepare().map_err(jailed("make", "run"))?;
            let mut command = Command::new(&jailer.program);
            command.args(jailer.arguments(&jail, &self.program));
            return Ok(command);
        }
        let mut command = Command::new(&self.program);
        command
            .arg("--api-sock")
            .arg(&spec.sockets.api)
            .args(["--id", &sockets::process_id(&spec.vm_id)]);
        Ok(command)
    }

    /// What the machine is made of, under the names that the VMM knows it by.
    fn parts(&self, spec: &MachineSpec) -> Result<Parts, VmmError> {
        let Some(jail) = self.jail(spec) else {
            return Ok(Parts {
                kernel: spec.boot.kernel.clone(),
                initrd: spec.boot.initrd.clone(),
                base: spec.base.clone(),
                overlay: spec.overlay.clone(),
                channel: spec.sockets.channel.clone(),
            });
        };
        let lend = |file: &Path, name, right| {
            let lent = jail.lend(file, name, right);
            lent.map_err(jailed("lend", file))
        };
        Ok(Parts {
            kernel: lend(&spec.boot.kernel, "kernel", Right::Read)?,
            initrd: lend(&spec.boot.initrd, "initrd", Right::Read)?,
            base: lend(&spec.base, "base", Right::Read)?,
            overlay: lend(&spec.overlay, "overlay", Right::Write)?,
            channel: "/run/v.sock".into(),
        })
    }
}

/// Paths as the VMM knows them.
#[derive(Debug)]
struct Parts {
    kernel: PathBuf,
    initrd: PathBuf,
    base: PathBuf,
    overlay: PathBuf,
    channel: PathBuf,
}

fn jailed(verb: &'static str, file: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> VmmError {
    let file = file.into();
    move |source| VmmError::Jail { verb, file, source }
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
        match &self.jailer {
            Some(jailer) => jailer.sockets(&self.program, vm_id),
            None => sockets::of(&self.socket_dir, vm_id),
        }
    }

    fn home(&self, vm_id: &str) -> Option<PathBuf> {
        let jailer = self.jailer.as_ref()?;
        Some(jailer.home(&self.program, vm_id))
    }

    fn user(&self, number: Index) -> Option<u32> {
        Some(self.jailer.as_ref()?.uid(number))
    }

    fn socket_files(&self, sockets: &Sockets) -> Vec<PathBuf> {
        match &self.jailer {
            // Its user may have put anything there: they go with the whole jail.
            Some(_) => Vec::new(),
            None => sockets::files(sockets),
        }
    }

    fn transport(&self, sockets: &Sockets) -> Arc<dyn Transport> {
        Arc::new(VsockTransport::new(sockets.channel.clone()))
    }

    fn spawn(&self, spec: &MachineSpec) -> Result<ProcessId, VmmError> {
        let mut command = self.command(spec)?;
        spawn_detached(&mut command, &spec.log, &spec.group).map_err(|source| VmmError::Start {
            program: command.get_program().into(),
            source,
        })
    }

    async fn open(&self, spec: &MachineSpec, process: &Process) -> Result<(), VmmError> {
        sockets::wait_open(spec, process).await?;
        private(&spec.sockets.api);
        Ok(())
    }

    async fn configure(&self, spec: &MachineSpec, process: &Process) -> Result<(), VmmError> {
        let parts = self.parts(spec)?;
        unless_ended(spec, process, describe(spec, &parts)).await?;
        private(&spec.sockets.channel);
        Ok(())
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
        let path = "/snapshot/create";
        let Some(jail) = self.jailer.as_ref().and(Jail::of(sockets)) else {
            let body = snapshot_body(&to.vmstate(), &to.memory());
            return api::put_within(&sockets.api, path, &body, self.memory_limit).await;
        };
        let body = snapshot_body(Path::new("/vmstate"), Path::new("/mem"));
        let saved = api::put_within(&sockets.api, path, &body, self.memory_limit).await;
        let taken = saved.and_then(|()| {
            for (name, to) in [("vmstate", to.vmstate()), ("mem", to.memory())] {
                jail.take(name, &to).map_err(jailed("take", name))?;
            }
            Ok(())
        });
        // Moved, unless something failed.
        for name in ["vmstate", "mem"] {
            jail.give_back(name);
        }
        taken
    }

    async fn load(
        &self,
        spec: &MachineSpec,
        process: &Process,
        from: &Files,
    ) -> Result<(), VmmError> {
        let (mut vmstate, mut memory) = (from.vmstate(), from.memory());
        let jail = self.jail(spec);
        if let Some(jail) = &jail {
            self.parts(spec)?;
            let lend = |file: &Path, name| {
                let lent = jail.lend(file, name, Right::Read);
                lent.map_err(jailed("lend", file))
            };
            (vmstate, memory) = (lend(&vmstate, "vmstate")?, lend(&memory, "mem")?);
        }
        let body = json!({
            "snapshot_path": vmstate,
            "mem_backend": {"backend_type": "File", "backend_path": memory},
            "resume_vm": true,
        });
        let path = "/snapshot/load";
        let load = api::put_within(&spec.sockets.api, path, &body, self.memory_limit);
        let loaded = unless_ended(spec, process, load).await;
        if let Some(jail) = &jail {
            // It has them open. Their names would keep a deleted snapshot's space taken.
            for name in ["vmstate", "mem"] {
                jail.give_back(name);
            }
        }
        loaded?;
        private(&spec.sockets.channel);
        Ok(())
    }

    async fn serves(&self, sockets: &Sockets) -> bool {
        unix_socket::connect(&sockets.api).await.is_ok()
    }
}

fn snapshot_body(vmstate: &Path, memory: &Path) -> Value {
    json!({
        "snapshot_type": "Full",
        "snapshot_path": vmstate,
        "mem_file_path": memory,
    })
}

/// The directory keeps others out already.
fn private(socket: &Path) {
    if let Err(error) = unix_socket::make_private(socket) {
        tracing::warn!(socket = %socket.display(), %error, "a socket keeps its rights");
    }
}

/// The calls of a cold boot, in the order that Firecracker documents.
async fn describe(spec: &MachineSpec, parts: &Parts) -> Result<(), VmmError> {
    let socket = &spec.sockets.api;
    let boot = json!({
        "kernel_image_path": parts.kernel,
        "initrd_path": parts.initrd,
        "boot_args": spec.boot.cmdline,
    });
    api::put(socket, "/boot-source", &boot).await?;
    let base = json!({
        "drive_id": "rootfs",
        "path_on_host": parts.base,
        // The initramfs mounts the disks; a root device would only add a `root=` of its own.
        "is_root_device": false,
        "is_read_only": true,
    });
    api::put(socket, "/drives/rootfs", &base).await?;
    let overlay = json!({
        "drive_id": "overlay",
        "path_on_host": parts.overlay,
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
    let vsock = json!({"guest_cid": GUEST_CID, "uds_path": parts.channel});
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
