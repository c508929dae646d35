//! A VM's configuration as QEMU's command line. Pure.
//!
//! The machine must come out the same for a boot and for loading a snapshot of
//! it, down to the order of the devices: QEMU matches saved device state by it.
//!
//! Choices, all in favour of a short boot on an emulated CPU and of the
//! behaviour of the real thing: no firmware devices that a microVM lacks
//! (SATA, HPET, SMBus, SMM, the VMware port), no image locks (a VM may be
//! restarted while the kernel still tears down its predecessor; a shared base is
//! read-only anyway), flushes only for `Writeback` drives.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;

use fuse_wire_guest::SERIAL_PORT_NAME;
use serde_json::json;

use crate::config::{
    BootSource, CacheType, Drive, Entropy, HugePages, IoEngine, MachineConfig, NetworkInterface,
    VmConfig,
};

/// All features but SMAP: with it, every access of the guest's kernel to user
/// memory switches a flag that ends a block of translated code, which makes
/// starting a program a fifth slower.
const CPU: &str = "max,smap=off";

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
    let mut args = Arguments::default();
    args.flag("-nodefaults").flag("-no-user-config");
    args.pair("-display", "none")
        .pair("-accel", "tcg")
        .pair("-cpu", CPU);
    args.machine(config.machine);
    args.flag("-no-reboot").flag("-S");
    match start {
        Start::Boot(source) => {
            args.pair("-kernel", &source.kernel_image_path);
            if let Some(initrd) = &source.initrd_path {
                args.pair("-initrd", initrd);
            }
            args.pair("-append", source.command_line(config.root_drive()));
        }
        Start::Incoming => {
            args.pair("-incoming", "defer");
        }
    }
    args.pair("-chardev", format!("socket,id=qmp,fd={}", channels.qmp));
    args.pair("-mon", "chardev=qmp,mode=control");
    args.console(config.serial.serial_out_path.as_deref());
    for (index, drive) in config.drives.iter().enumerate() {
        args.drive(index, drive);
    }
    for (interface, tap) in config.networks.iter().zip(&channels.taps) {
        args.network(interface, *tap);
    }
    if let Some(fd) = channels.vsock {
        args.pair("-chardev", format!("socket,id=vsock,fd={fd}"));
        args.device(&json!({"driver": "virtio-serial-pci", "id": "vsock-bus", "max_ports": 2}));
        args.device(&json!({
            "driver": "virtserialport", "bus": "vsock-bus.0", "nr": 1, "chardev": "vsock",
            "id": "vsock-port", "name": SERIAL_PORT_NAME,
        }));
    }
    if let Some(entropy) = config.entropy {
        args.entropy(entropy);
    }
    args.0
}

fn drive_id(drive: &Drive) -> String {
    format!("drive-{}", drive.drive_id)
}

/// Where the monitor finds the block backend of the drive `id`.
pub(crate) fn drive_backend(id: &str) -> String {
    format!("/machine/peripheral/drive-{id}/virtio-backend")
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn flag(&mut self, name: &str) -> &mut Self {
        self.0.push(name.into());
        self
    }

    fn pair(&mut self, name: &str, value: impl Into<OsString>) -> &mut Self {
        self.0.push(name.into());
        self.0.push(value.into());
        self
    }

    fn device(&mut self, properties: &serde_json::Value) {
        self.pair("-device", properties.to_string());
    }

    fn machine(&mut self, machine: MachineConfig) {
        let options = "q35,hpet=off,sata=off,smbus=off,smm=off,usb=off,vmport=off";
        match machine.huge_pages {
            HugePages::None => {
                self.pair("-machine", options);
            }
            HugePages::Hugetlbfs2M => {
                self.pair("-machine", format!("{options},memory-backend=ram"));
                let object = json!({
                    "qom-type": "memory-backend-memfd", "id": "ram", "hugetlb": true,
                    "hugetlbsize": 2 << 20, "size": machine.mem_size_mib << 20,
                });
                self.pair("-object", object.to_string());
            }
        }
        self.pair("-m", format!("{}M", machine.mem_size_mib));
        let vcpus = machine.vcpu_count;
        let threads = if machine.smt && vcpus > 1 { 2 } else { 1 };
        let cores = vcpus / threads;
        self.pair(
            "-smp",
            format!("{vcpus},sockets=1,cores={cores},threads={threads}"),
        );
    }

    fn console(&mut self, output: Option<&Path>) {
        match output {
            // QEMU leaves signals to the terminal as the emulator has it.
            None => self.pair("-chardev", "stdio,id=console,signal=off"),
            Some(path) => {
                let mut value = OsString::from("file,id=console,append=on,path=");
                value.push(escaped(path));
                self.pair("-chardev", value)
            }
        };
        self.pair("-serial", "chardev:console");
    }

    fn drive(&mut self, index: usize, drive: &Drive) {
        // Not by its id: QEMU allows a node's name 31 characters.
        let node = format!("disk{index}");
        let no_flush = drive.cache_type == CacheType::Unsafe;
        let engine = match drive.io_engine.unwrap_or_default() {
            IoEngine::Sync => "threads",
            IoEngine::Async => "io_uring",
        };
        // Holes that the guest punches (discard) become holes of the file.
        let block = json!({
            "driver": "file", "node-name": node, "filename": drive.path_on_host,
            "read-only": drive.read_only(), "locking": "off", "aio": engine,
            "cache": {"no-flush": no_flush}, "discard": "unmap",
        });
        self.pair("-blockdev", block.to_string());
        self.device(&json!({
            "driver": "virtio-blk-pci", "id": drive_id(drive), "drive": node,
        }));
    }

    fn network(&mut self, interface: &NetworkInterface, tap: RawFd) {
        let id = &interface.iface_id;
        self.pair("-netdev", format!("tap,id=net-{id},fd={tap},vhost=off"));
        // A boot ROM is of no use to a guest whose kernel is handed in.
        let mut device = json!({
            "driver": "virtio-net-pci", "id": format!("nic-{id}"), "netdev": format!("net-{id}"),
            "romfile": "",
        });
        if let Some(mac) = interface.guest_mac {
            device["mac"] = mac.to_string().into();
        }
        self.device(&device);
    }

    fn entropy(&mut self, entropy: Entropy) {
        self.pair("-object", "rng-random,id=rng,filename=/dev/urandom");
        let mut device = json!({"driver": "virtio-rng-pci", "id": "entropy", "rng": "rng"});
        // Checked when it was configured.
        let bytes = entropy.throttle().ok().and_then(|throttle| throttle.bytes);
        if let Some(rate) = bytes {
            device["max-bytes"] = rate.per_second.into();
            device["period"] = 1000.into();
        }
        self.device(&device);
    }
}

/// A path as the value of a comma-separated option.
fn escaped(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let mut bytes = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if *byte == b',' {
            bytes.push(b',');
        }
        bytes.push(*byte);
    }
    OsString::from_vec(bytes)
}
