//! A machine as QEMU's arguments. Pure.
//!
//! Choices, all in favour of a short boot: no firmware devices that a microVM lacks (SATA, HPET,
//! SMBus, SMM, the VMware port), no image locks (a VM may be restarted while the kernel still tears
//! down its predecessor; a shared base is read-only anyway). The machine does not run before it is
//! told to. The order of the calls is the order of the devices, by which saved state is matched.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use fuse_wire_guest::SERIAL_PORT_NAME;
use serde_json::{Value, json};

/// The monitor's name among the channels.
const MONITOR: &str = "qmp";

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The CPU.
    Kvm,
    /// An emulation of one.
    Tcg,
}

impl Accelerator {
    /// By default QEMU keeps up to 1 GiB of translated code, which a host has not promised a VM.
    fn argument(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,tb-size=256",
        }
    }
}

/// What backs the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Ordinary pages.
    Ordinary,
    /// Reserved pages of 2 MiB.
    HugePages,
}

/// One end of a channel to QEMU.
#[derive(Clone, Copy, Debug)]
pub enum Port<'a> {
    /// A connected descriptor that it inherits.
    Fd(RawFd),
    /// A socket that it listens on; one client at a time.
    Listen(&'a Path),
}

/// A network device of the host.
#[derive(Clone, Copy, Debug)]
pub enum Tap<'a> {
    /// Open already, and inherited.
    Fd(RawFd),
    /// By its name.
    Name(&'a str),
}

/// Where the guest's console goes.
#[derive(Clone, Copy, Debug)]
pub enum Console<'a> {
    /// QEMU's own standard input and output.
    Stdio,
    /// The end of a file.
    File(&'a Path),
}

/// How the bytes of a disk's file are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As they are.
    Raw,
    /// As a QEMU image. What it says of a backing file is not believed.
    Qcow2,
}

/// How a disk's file is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// By threads that block.
    Threads,
    /// By `io_uring`.
    IoUring,
}

/// A disk.
#[derive(Clone, Copy, Debug)]
pub struct Disk<'a> {
    /// Name among the machine's disks.
    pub id: &'a str,
    /// Its file.
    pub path: &'a Path,
    /// What the file holds.
    pub format: Format,
    /// Whether the guest may not write.
    pub read_only: bool,
    /// Whether the guest's flushes stop at the host's page cache.
    pub no_flush: bool,
    /// How the file is accessed.
    pub engine: Engine,
}

/// Arguments under way.
#[derive(Clone, Debug)]
pub struct CommandLine {
    arguments: Vec<OsString>,
    disks: usize,
}

impl CommandLine {
    /// A machine without any device, on `accelerator`.
    #[must_use]
    pub fn new(accelerator: Accelerator) -> Self {
        let mut line = Self {
            arguments: Vec::new(),
            disks: 0,
        };
        line.flag("-nodefaults").flag("-no-user-config");
        // All features but SMAP on an emulated CPU: with it, every access of the guest's kernel to
        // user memory switches a flag that ends a block of translated code, which makes starting a
        // program a fifth slower.
        let cpu = match accelerator {
            Accelerator::Kvm => "host",
            Accelerator::Tcg => "max,smap=off",
        };
        line.pair("-display", "none")
            .pair("-accel", accelerator.argument())
            .pair("-cpu", cpu);
        line
    }

    /// An option without a value.
    pub fn flag(&mut self, name: &str) -> &mut Self {
        self.arguments.push(name.into());
        self
    }

    /// An option and its value.
    pub fn pair(&mut self, name: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.arguments.push(name.into());
        self.arguments.push(value.as_ref().to_owned());
        self
    }

    /// A device by its properties.
    pub fn device(&mut self, properties: &Value) -> &mut Self {
        self.pair("-device", properties.to_string())
    }

    /// Board, memory and CPUs; halted, and ended by a reboot.
    pub fn machine(&mut self, mem_mib: u64, memory: Memory, vcpus: u32, threads: u32) -> &mut Self {
        let board = "q35,hpet=off,sata=off,smbus=off,smm=off,usb=off,vmport=off";
        match memory {
            Memory::Ordinary => {
                self.pair("-machine", board);
            }
            Memory::HugePages => {
                self.pair("-machine", format!("{board},memory-backend=ram"));
                let object = json!({
                    "qom-type": "memory-backend-memfd", "id": "ram", "hugetlb": true,
                    "hugetlbsize": 2 << 20, "size": mem_mib << 20,
                });
                self.pair("-object", object.to_string());
            }
        }
        self.pair("-m", format!("{mem_mib}M"));
        let cores = vcpus / threads;
        let cpus = format!("{vcpus},sockets=1,cores={cores},threads={threads}");
        self.pair("-smp", cpus).flag("-no-reboot").flag("-S")
    }

    /// Firmware in place of the built-in one, read-only.
    pub fn firmware(&mut self, path: &Path) -> &mut Self {
        let value = option("if=pflash,format=raw,readonly=on,file=", path);
        self.pair("-drive", value)
    }

    /// What the machine begins with.
    pub fn kernel(
        &mut self,
        kernel: &Path,
        initrd: Option<&Path>,
        arguments: impl AsRef<OsStr>,
    ) -> &mut Self {
        self.pair("-kernel", kernel);
        if let Some(initrd) = initrd {
            self.pair("-initrd", initrd);
        }
        self.pair("-append", arguments)
    }

    /// The value of the option that makes the monitor listen at `path`: an argument that no other
    /// QEMU of the host has.
    #[must_use]
    pub fn monitor_mark(path: &Path) -> OsString {
        listening(MONITOR, path)
    }

    /// The monitor.
    pub fn monitor(&mut self, port: Port<'_>) -> &mut Self {
        self.channel(MONITOR, port)
            .pair("-mon", "chardev=qmp,mode=control")
    }

    /// The first serial port.
    pub fn console(&mut self, console: Console<'_>) -> &mut Self {
        match console {
            // Signals stay with whoever has the terminal.
            Console::Stdio => self.pair("-chardev", "stdio,id=console,signal=off"),
            Console::File(path) => {
                self.pair("-chardev", option("file,id=console,append=on,path=", path))
            }
        };
        self.pair("-serial", "chardev:console")
    }

    /// A disk. The device is `drive-<id>`.
    pub fn disk(&mut self, disk: Disk<'_>) -> &mut Self {
        // Not by its id: QEMU allows a node's name 31 characters.
        let node = format!("disk{}", self.disks);
        self.disks += 1;
        let engine = match disk.engine {
            Engine::Threads => "threads",
            Engine::IoUring => "io_uring",
        };
        let file_node = match disk.format {
            Format::Raw => node.clone(),
            Format::Qcow2 => format!("{node}-file"),
        };
        // Holes that the guest punches (discard) become holes of the file.
        let file = json!({
            "driver": "file", "node-name": file_node, "filename": disk.path,
            "read-only": disk.read_only, "locking": "off", "aio": engine,
            "cache": {"no-flush": disk.no_flush}, "discard": "unmap",
        });
        self.pair("-blockdev", file.to_string());
        if disk.format == Format::Qcow2 {
            let image = json!({
                "driver": "qcow2", "node-name": node, "file": file_node, "backing": null,
                "read-only": disk.read_only, "discard": "unmap",
            });
            self.pair("-blockdev", image.to_string());
        }
        let id = format!("drive-{}", disk.id);
        self.device(&json!({"driver": "virtio-blk-pci", "id": id, "drive": node}))
    }

    /// A network device. The device is `nic-<id>`.
    pub fn network(&mut self, id: &str, tap: Tap<'_>, mac: Option<&dyn Display>) -> &mut Self {
        let host = match tap {
            Tap::Fd(fd) => format!("fd={fd}"),
            Tap::Name(name) => format!("ifname={name},script=no,downscript=no"),
        };
        self.pair("-netdev", format!("tap,id=net-{id},{host},vhost=off"));
        // A boot ROM is of no use to a guest whose kernel is handed in.
        let mut device = json!({
            "driver": "virtio-net-pci", "id": format!("nic-{id}"), "netdev": format!("net-{id}"),
            "romfile": "",
        });
        if let Some(mac) = mac {
            device["mac"] = mac.to_string().into();
        }
        self.device(&device)
    }

    /// The serial port that is the channel to the guest's agent.
    pub fn guest_channel(&mut self, id: &str, port: Port<'_>) -> &mut Self {
        let bus = format!("{id}-bus");
        self.channel(id, port)
            .device(&json!({"driver": "virtio-serial-pci", "id": bus, "max_ports": 2}))
            .device(&json!({
                "driver": "virtserialport", "bus": format!("{bus}.0"), "nr": 1, "chardev": id,
                "id": format!("{id}-port"), "name": SERIAL_PORT_NAME,
            }))
    }

    fn channel(&mut self, id: &str, port: Port<'_>) -> &mut Self {
        match port {
            Port::Fd(fd) => self.pair("-chardev", format!("socket,id={id},fd={fd}")),
            Port::Listen(path) => self.pair("-chardev", listening(id, path)),
        }
    }

    /// The arguments.
    #[must_use]
    pub fn into_arguments(self) -> Vec<OsString> {
        self.arguments
    }

    /// As it would be typed, one option with its value a line; for comparisons.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for argument in &self.arguments {
            let argument = argument.to_string_lossy();
            let separator = if argument.starts_with('-') { "\n" } else { " " };
            text.push_str(separator);
            text.push_str(&argument);
        }
        text
    }
}

/// A channel whose socket QEMU makes.
fn listening(id: &str, path: &Path) -> OsString {
    option(&format!("socket,id={id},server=on,wait=off,path="), path)
}

/// A path as the last value of a comma-separated option.
fn option(head: &str, path: &Path) -> OsString {
    let mut bytes = head.as_bytes().to_vec();
    for byte in path.as_os_str().as_bytes() {
        if *byte == b',' {
            bytes.push(b',');
        }
        bytes.push(*byte);
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(build: impl FnOnce(&mut CommandLine)) -> String {
        let mut line = CommandLine::new(Accelerator::Kvm);
        let head = line.to_text().len();
        build(&mut line);
        line.to_text()[head..].to_owned()
    }

    #[test]
    fn a_comma_of_a_path_is_no_end_of_it() {
        let path = Path::new("/a,b");
        let line = text(|line| {
            line.monitor(Port::Listen(path)).firmware(path);
        });
        assert_eq!(
            line,
            "\n-chardev socket,id=qmp,server=on,wait=off,path=/a,,b\
             \n-mon chardev=qmp,mode=control\
             \n-drive if=pflash,format=raw,readonly=on,file=/a,,b"
        );
    }

    #[test]
    fn an_image_has_no_backing_file_whatever_it_says() {
        let disk = Disk {
            id: "base",
            path: Path::new("/cuda.qcow2"),
            format: Format::Qcow2,
            read_only: true,
            no_flush: true,
            engine: Engine::Threads,
        };
        let line = text(|line| {
            line.disk(disk);
        });
        assert!(
            line.contains(
                r#"-blockdev {"driver":"qcow2","node-name":"disk0","file":"disk0-file","backing":null,"#
            ),
            "{line}"
        );
    }

    #[test]
    fn a_machine_on_the_cpu_shows_it_to_the_guest() {
        let line = CommandLine::new(Accelerator::Kvm).to_text();
        assert!(line.ends_with("-accel kvm\n-cpu host"), "{line}");
    }
}
