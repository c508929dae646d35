//! What differs between virtual machine monitors.
//!
//! The registry drives every VM through [`Vmm`]; a driver knows its program's command line, control
//! socket and channel to the guest, and nothing of registries, networks or HTTP. Processes are
//! shared ground ([`process`]): a VMM runs in a session of its own, outlives the agent, and is found
//! again by its pid and start time.

pub mod firecracker;
pub mod process;
pub mod qemu;
pub mod sockets;

#[cfg(test)]
pub(crate) mod fake;

use std::ffi::OsString;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thiserror::Error;

use crate::cgroup::Group;
use crate::gpu::pci::PciAddress;
use crate::guest::Transport;
use crate::net::Index;
use crate::net::plan::MacAddr;
use crate::snapshot::Files;
pub use process::{Process, ProcessId};

/// A machine to run.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// Id of the VM.
    pub vm_id: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// What is booted.
    pub boot: BootSource,
    /// First disk, read-only.
    pub base: PathBuf,
    /// Second disk, the VM's own.
    pub overlay: PathBuf,
    /// The network device, if it has one.
    pub nic: Option<Nic>,
    /// File that takes the VMM's output, the guest's console included.
    pub log: PathBuf,
    /// Back its memory with 2 MiB pages of the host.
    pub huge_pages: bool,
    /// Devices of the host that become the guest's.
    pub devices: Vec<HostDevice>,
    /// Its number on the host.
    pub number: Index,
    /// Where its sockets are.
    pub sockets: Sockets,
    /// The control group that it runs in; one without directories is none.
    pub group: Group,
}

/// A device of the host that is given to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostDevice {
    /// A PCI function.
    Pci(PciAddress),
    /// A mediated device, by its UUID.
    Mediated(String),
}

/// Kernel, initramfs and command line.
#[derive(Debug, Clone)]
pub struct BootSource {
    /// Uncompressed kernel.
    pub kernel: PathBuf,
    /// Initramfs with the guest agent.
    pub initrd: PathBuf,
    /// Kernel command line.
    pub cmdline: String,
}

/// A network device.
#[derive(Debug, Clone)]
pub struct Nic {
    /// Device of the host.
    pub tap: String,
    /// Hardware address in the guest.
    pub mac: MacAddr,
}

/// Socket paths of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sockets {
    /// The VMM's control socket.
    pub api: PathBuf,
    /// The channel to the guest.
    pub channel: PathBuf,
}

/// What a driver can do.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most virtual CPUs of one VM.
    pub max_cpus: u32,
    /// Whether it writes and loads the memory of machines.
    pub snapshots: bool,
    /// Whether its program is told the whole machine when it starts, so that disks and network device
    /// have to exist by then.
    pub told_at_start: bool,
}

/// A virtual machine monitor.
#[async_trait]
pub trait Vmm: Debug + Send + Sync {
    /// What it can do.
    fn limits(&self) -> Limits;

    /// Where the sockets of `vm_id` go; `dir` is the VM's state directory.
    fn sockets(&self, vm_id: &str, dir: &Path) -> Sockets;

    /// Every file a VM of these sockets may leave in the file system.
    fn socket_files(&self, sockets: &Sockets) -> Vec<PathBuf>;

    /// An argument that the process of these sockets has and no other process.
    fn mark(&self, sockets: &Sockets) -> OsString {
        sockets.api.clone().into_os_string()
    }

    /// A directory of the driver's that goes with the VM, if there is one.
    fn home(&self, _vm_id: &str) -> Option<PathBuf> {
        None
    }

    /// The user, not root, that a VM of this number runs as.
    fn user(&self, _number: Index) -> Option<u32> {
        None
    }

    /// The way to the guest.
    fn transport(&self, sockets: &Sockets) -> Arc<dyn Transport>;

    /// Starts the program and returns at once. Must not await anything between the start and the
    /// return, so that a started process is always known.
    ///
    /// # Errors
    /// The program cannot be started.
    fn spawn(&self, spec: &MachineSpec) -> Result<ProcessId, VmmError>;

    /// Waits until the program can be told something.
    ///
    /// # Errors
    /// It ends, or is not ready in time.
    async fn open(&self, spec: &MachineSpec, process: &Process) -> Result<(), VmmError>;

    /// Describes the machine to it. Disks and network device exist by now.
    ///
    /// # Errors
    /// It ends, does not answer in time, or refuses a part of the machine.
    async fn configure(&self, spec: &MachineSpec, process: &Process) -> Result<(), VmmError>;

    /// Starts the machine.
    ///
    /// # Errors
    /// It does not answer in time, or refuses.
    async fn boot(&self, spec: &MachineSpec) -> Result<(), VmmError>;

    /// Stops the machine's CPUs.
    ///
    /// # Errors
    /// It does not answer in time, or refuses.
    async fn pause(&self, sockets: &Sockets) -> Result<(), VmmError>;

    /// Lets the CPUs of a paused machine run. Fine for one that runs. A program that is still writing
    /// the machine's memory answers when it is done, hence the bound of the caller's.
    ///
    /// # Errors
    /// It does not answer in time, or refuses.
    async fn resume(&self, sockets: &Sockets, within: Duration) -> Result<(), VmmError>;

    /// Writes state and memory of a paused machine.
    ///
    /// # Errors
    /// It does not answer in time, or cannot write.
    async fn save(&self, sockets: &Sockets, to: &Files) -> Result<(), VmmError>;

    /// Makes a fresh program the machine that was saved, and lets it run. Disks and network device
    /// exist by now, under the names they had.
    ///
    /// # Errors
    /// It ends, does not answer in time, or refuses the files.
    async fn load(
        &self,
        spec: &MachineSpec,
        process: &Process,
        from: &Files,
    ) -> Result<(), VmmError>;

    /// Whether something serves the control socket.
    async fn serves(&self, sockets: &Sockets) -> bool;
}

/// A VMM that did not do what it was told.
#[derive(Debug, Error)]
pub enum VmmError {
    /// The program did not start.
    #[error("cannot start the VMM {}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The program ended by itself.
    #[error("the VMM ended during {during}{}", log_part(.log))]
    Ended {
        /// What it was doing.
        during: &'static str,
        /// The last lines of its log.
        log: String,
    },
    /// Its control socket did not come up.
    #[error("the VMM did not open {} within {seconds} s", .socket.display())]
    NoSocket {
        /// The socket.
        socket: PathBuf,
        /// The bound.
        seconds: u64,
    },
    /// Its jail cannot be made ready.
    #[error("cannot {verb} {} in the VMM's jail", .file.display())]
    Jail {
        /// What was tried.
        verb: &'static str,
        /// With which file.
        file: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// It refused a call.
    #[error("the VMM refused {call} with status {status}: {fault}")]
    Refused {
        /// Path of the call.
        call: &'static str,
        /// The status.
        status: u16,
        /// Its reason.
        fault: String,
    },
    /// A call broke off.
    #[error("the VMM did not answer {call}")]
    Broken {
        /// Path of the call.
        call: &'static str,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A call took too long.
    #[error("the VMM did not answer {call} within {seconds} s")]
    Timeout {
        /// Path of the call.
        call: &'static str,
        /// The bound.
        seconds: u64,
    },
    /// Its monitor does not do what it is told.
    #[error("the VMM was told {call} in vain")]
    Monitor {
        /// The command.
        call: &'static str,
        /// The reason.
        #[source]
        source: fuse_qemu::QmpError,
    },
    /// It cannot do it at all.
    #[error("the VMM cannot {what}")]
    Unsupported {
        /// What it was asked.
        what: &'static str,
    },
    /// The process cannot be watched.
    #[error("cannot watch the VMM process {pid}")]
    Watch {
        /// The process.
        pid: i32,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
}

fn log_part(log: &str) -> String {
    if log.is_empty() {
        String::new()
    } else {
        format!("; its last words: {log}")
    }
}
