//! Driver for QEMU: guests that are given devices of the host.
//!
//! One process per VM. The whole machine is its command line, halted; the monitor starts it. The
//! channel to the guest is a virtio-serial port, one Unix socket that takes one client, so every user
//! of a VM's channel gets the same [`SerialTransport`].
//!
//! QEMU opens what it needs (disks, TAP, `/dev/kvm`, `/dev/vfio`) as the agent's user and then gives
//! its privileges up, under a seccomp filter. Devices of the host cannot be part of a snapshot, so
//! there are none.

pub mod accel;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fuse_qemu::commands::{Command as MonitorCommand, Cont, Stop};
use fuse_qemu::{
    Accelerator, CommandLine, Console, Disk, Engine, Format, Memory, Port, Qmp, QmpError, Tap,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use tokio::net::UnixStream;

use super::process::{Process, ProcessId, spawn_detached};
use super::{HostDevice, Limits, MachineSpec, Sockets, Vmm, VmmError, sockets};
use crate::guest::{SerialTransport, Transport};
use crate::snapshot::Files;

/// Bound of a command to the monitor.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// Most vCPUs of a machine whose interrupts are not remapped.
const MAX_CPUS: u32 = 255;
/// System calls that no machine needs. Changing the user is one that is needed, once; nothing can be
/// started afterwards that would get privileges back.
const SANDBOX: &str = "on,obsolete=deny,spawn=deny,resourcecontrol=deny";
/// On an emulated CPU programs that move between runs are translated anew, each time.
const TCG_ARGUMENT: &str = "norandmaps";
/// How a qcow2 image begins.
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// The driver.
#[derive(Debug)]
pub struct Qemu {
    program: PathBuf,
    socket_dir: PathBuf,
    options: Options,
    /// Channels in use, by their sockets.
    channels: Mutex<HashMap<PathBuf, Weak<SerialTransport>>>,
}

/// What is the same for all machines of a host.
#[derive(Debug, Clone)]
pub struct Options {
    /// What executes the guests.
    pub accelerator: Accelerator,
    /// UEFI firmware, if guests begin with it.
    pub firmware: Option<PathBuf>,
    /// User and group that QEMU becomes; `None` stays who starts it.
    pub run_as: Option<(u32, u32)>,
}

impl Qemu {
    /// Drives `program`, with sockets in `socket_dir`.
    #[must_use]
    pub fn new(program: PathBuf, socket_dir: PathBuf, options: Options) -> Self {
        Self {
            program,
            socket_dir,
            options,
            channels: Mutex::default(),
        }
    }
}

#[async_trait]
impl Vmm for Qemu {
    fn limits(&self) -> Limits {
        Limits {
            max_cpus: MAX_CPUS,
            snapshots: false,
            told_at_start: true,
        }
    }

    fn sockets(&self, vm_id: &str, _dir: &Path) -> Sockets {
        sockets::of(&self.socket_dir, vm_id)
    }

    fn socket_files(&self, sockets: &Sockets) -> Vec<PathBuf> {
        vec![sockets.api.clone(), sockets.channel.clone()]
    }

    fn mark(&self, sockets: &Sockets) -> OsString {
        CommandLine::monitor_mark(&sockets.api)
    }

    fn transport(&self, sockets: &Sockets) -> Arc<dyn Transport> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(&sockets.channel).and_then(Weak::upgrade) {
            return channel;
        }
        channels.retain(|_, channel| channel.strong_count() > 0);
        let channel = Arc::new(SerialTransport::new(sockets.channel.clone()));
        channels.insert(sockets.channel.clone(), Arc::downgrade(&channel));
        channel
    }

    fn spawn(&self, spec: &MachineSpec) -> Result<ProcessId, VmmError> {
        let failed = |source| VmmError::Start {
            program: self.program.clone(),
            source,
        };
        let format = format_of(&spec.base).map_err(failed)?;
        let line = command_line(spec, &self.options, format);
        let mut command = Command::new(&self.program);
        command.args(line.into_arguments());
        let id = spawn_detached(&mut command, &spec.log, &spec.group).map_err(failed)?;
        if !spec.devices.is_empty() {
            // A device reads and writes the guest's memory behind the kernel's back, so all of it
            // stays where it is. Its end would tell if this did not succeed.
            let all = Rlimit {
                current: None,
                maximum: None,
            };
            let _ended = prlimit(Pid::from_raw(id.pid), Resource::Memlock, all);
        }
        Ok(id)
    }

    async fn open(&self, spec: &MachineSpec, process: &Process) -> Result<(), VmmError> {
        sockets::wait_open(spec, process).await
    }

    async fn configure(&self, _: &MachineSpec, _: &Process) -> Result<(), VmmError> {
        // It was told everything when it started.
        Ok(())
    }

    async fn boot(&self, spec: &MachineSpec) -> Result<(), VmmError> {
        tell(&spec.sockets, Cont {}, CALL_LIMIT).await
    }

    async fn pause(&self, sockets: &Sockets) -> Result<(), VmmError> {
        tell(sockets, Stop {}, CALL_LIMIT).await
    }

    async fn resume(&self, sockets: &Sockets, within: Duration) -> Result<(), VmmError> {
        tell(sockets, Cont {}, within).await
    }

    async fn save(&self, _: &Sockets, _: &Files) -> Result<(), VmmError> {
        let what = "write the memory of a machine that has devices of the host";
        Err(VmmError::Unsupported { what })
    }

    async fn load(&self, _: &MachineSpec, _: &Process, _: &Files) -> Result<(), VmmError> {
        let what = "load the memory of a machine that has devices of the host";
        Err(VmmError::Unsupported { what })
    }

    async fn serves(&self, sockets: &Sockets) -> bool {
        UnixStream::connect(&sockets.api).await.is_ok()
    }
}

/// The format of a base image, which guests cannot write, by how it begins.
fn format_of(base: &Path) -> std::io::Result<Format> {
    let mut head = [0; 4];
    let mut file = std::fs::File::open(base)?;
    match file.read_exact(&mut head) {
        Ok(()) if head == QCOW2_MAGIC => Ok(Format::Qcow2),
        Ok(()) => Ok(Format::Raw),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Format::Raw),
        Err(e) => Err(e),
    }
}

/// The machine of `spec`, whose base image has the format `base`.
fn command_line(spec: &MachineSpec, options: &Options, base: Format) -> CommandLine {
    let mut line = CommandLine::new(options.accelerator);
    line.pair("-name", format!("guest={}", spec.vm_id));
    line.pair("-sandbox", SANDBOX);
    if let Some((user, group)) = options.run_as {
        line.pair("-runas", format!("{user}:{group}"));
    }
    let memory = match spec.huge_pages {
        true => Memory::HugePages,
        false => Memory::Ordinary,
    };
    line.machine(spec.memory_mib.into(), memory, spec.cpus, 1);
    if let Some(firmware) = &options.firmware {
        line.firmware(firmware);
    }
    let boot = &spec.boot;
    let arguments = match options.accelerator {
        Accelerator::Kvm => boot.cmdline.clone(),
        Accelerator::Tcg => format!("{} {TCG_ARGUMENT}", boot.cmdline),
    };
    line.kernel(&boot.kernel, Some(&boot.initrd), arguments)
        .console(Console::Stdio)
        .disk(Disk {
            id: "rootfs",
            path: &spec.base,
            format: base,
            read_only: true,
            no_flush: true,
            engine: Engine::Threads,
        })
        .disk(Disk {
            id: "overlay",
            path: &spec.overlay,
            format: Format::Raw,
            read_only: false,
            no_flush: false,
            engine: Engine::Threads,
        });
    if let Some(nic) = &spec.nic {
        line.network("eth0", Tap::Name(&nic.tap), Some(&nic.mac));
    }
    // The channel's socket is there when the monitor's is: they are made in this order.
    line.guest_channel("channel", Port::Listen(&spec.sockets.channel))
        .monitor(Port::Listen(&spec.sockets.api));
    for (device, n) in spec.devices.iter().zip(0u32..) {
        let id = format!("host{n}");
        line.device(&match device {
            HostDevice::Pci(slot) => {
                json!({"driver": "vfio-pci", "id": id, "host": slot.to_string()})
            }
            HostDevice::Mediated(uuid) => {
                let path = format!("/sys/bus/mdev/devices/{uuid}");
                json!({"driver": "vfio-pci", "id": id, "sysfsdev": path})
            }
        });
    }
    line
}

/// Carries out one command, on a connection of its own.
async fn tell<C: MonitorCommand>(
    sockets: &Sockets,
    command: C,
    limit: Duration,
) -> Result<(), VmmError> {
    let call = C::NAME;
    let exchange = async {
        let stream = UnixStream::connect(&sockets.api).await;
        let stream = stream.map_err(|source| VmmError::Broken {
            call,
            source: Box::new(source),
        })?;
        let failed = |source: QmpError| VmmError::Monitor { call, source };
        let mut monitor = Qmp::connect(stream).await.map_err(failed)?;
        monitor.execute(command).await.map_err(failed)?;
        Ok(())
    };
    let told = tokio::time::timeout(limit, exchange).await;
    told.map_err(|_| VmmError::Timeout {
        call,
        seconds: limit.as_secs(),
    })?
}

#[cfg(test)]
mod tests;
