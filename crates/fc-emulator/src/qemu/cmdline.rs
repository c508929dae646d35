//! A VM's configuration as QEMU's command line. Pure.
//!
//! The machine must come out the same for a boot and for loading a snapshot of
//! it, down to the order of the devices: QEMU matches saved device state by it.
//! Flushes of the guest reach the disk for `Writeback` drives only.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;

use fuse_qemu::{Accelerator, CommandLine, Console, Disk, Engine, Format, Memory, Port, Tap};
use serde_json::json;

use crate::config::{
    BootSource, CacheType, Drive, Entropy, HugePages, IoEngine, MachineConfig, VmConfig,
};

/// Descriptors that QEMU inherits, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    /// Monitor.
    pub(crate) qmp: RawFd,
    /// Host end's counterpart of the vsock device; present if there is one.
    pub(crate) vsock: Option<RawFd>,
    /// One TAP per interface, in their order.
    pub(crate) taps: Vec<RawFd>,
}

/// What the new machine begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start<'a> {
    /// A kernel's entry point.
    Boot(&'a BootSource),
    /// A snapshot that will be named on the monitor.
    Incoming,
}

/// QEMU's arguments. The machine does not run before it is told to.
pub(crate) fn arguments(config: &VmConfig, channels: &Channels, start: Start<'_>) -> Vec<OsString> {
    line(config, channels, start).into_arguments()
}

pub(super) fn line(config: &VmConfig, channels: &Channels, start: Start<'_>) -> CommandLine {
    let mut line = CommandLine::new(Accelerator::Tcg);
    machine(&mut line, config.machine);
    match start {
        Start::Boot(source) => line.kernel(
            &source.kernel_image_path,
            source.initrd_path.as_deref(),
            source.command_line(config.root_drive()),
        ),
        Start::Incoming => line.pair("-incoming", "defer"),
    };
    line.monitor(Port::Fd(channels.qmp));
    let console = config.serial.serial_out_path.as_deref();
    line.console(console.map_or(Console::Stdio, Console::File));
    for drive in &config.drives {
        line.disk(disk(drive));
    }
    for (interface, tap) in config.networks.iter().zip(&channels.taps) {
        let mac = interface.guest_mac.as_ref();
        let mac = mac.map(|mac| mac as &dyn std::fmt::Display);
        line.network(&interface.iface_id, Tap::Fd(*tap), mac);
    }
    if let Some(fd) = channels.vsock {
        line.guest_channel("vsock", Port::Fd(fd));
    }
    if let Some(config) = config.entropy {
        entropy(&mut line, config);
    }
    line
}

/// Where the monitor finds the block backend of the drive `id`.
pub(crate) fn drive_backend(id: &str) -> String {
    format!("/machine/peripheral/drive-{id}/virtio-backend")
}

fn machine(line: &mut CommandLine, machine: MachineConfig) {
    let memory = match machine.huge_pages {
        HugePages::None => Memory::Ordinary,
        HugePages::Hugetlbfs2M => Memory::HugePages,
    };
    let vcpus = machine.vcpu_count;
    let threads = if machine.smt && vcpus > 1 { 2 } else { 1 };
    line.machine(machine.mem_size_mib, memory, vcpus.into(), threads);
}

fn disk(drive: &Drive) -> Disk<'_> {
    Disk {
        id: &drive.drive_id,
        // Checked when it was configured; QEMU refuses an empty name.
        path: drive.path_on_host.as_deref().unwrap_or(Path::new("")),
        format: Format::Raw,
        read_only: drive.read_only(),
        no_flush: drive.cache_type == CacheType::Unsafe,
        engine: match drive.io_engine.unwrap_or_default() {
            IoEngine::Sync => Engine::Threads,
            IoEngine::Async => Engine::IoUring,
        },
    }
}

fn entropy(line: &mut CommandLine, entropy: Entropy) {
    line.pair("-object", "rng-random,id=rng,filename=/dev/urandom");
    let mut device = json!({"driver": "virtio-rng-pci", "id": "entropy", "rng": "rng"});
    // Checked when it was configured.
    let bytes = entropy.throttle().ok().and_then(|throttle| throttle.bytes);
    if let Some(rate) = bytes {
        device["max-bytes"] = rate.per_second.into();
        device["period"] = 1000.into();
    }
    line.device(&device);
}
