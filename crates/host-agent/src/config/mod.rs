//! Settings of a host agent, read from the environment once at start.
//!
//! Programs differ by [`Backend`] alone: the prefix of their variables and a few defaults. Values
//! are checked here, so that whatever runs later can rely on them. Secrets come from the
//! environment only, never from arguments.

mod env;
mod public_host;
mod qemu;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use fuse_daemon::tls::{OneOfTwo, TlsFiles};
use fuse_wire_host::{AgentToken, limits};
use thiserror::Error;

use crate::cgroup::{IoLimits, Mode};
use crate::disk::overlay::MAX_GIB;
use crate::net::plan::{NetPlan, PlanError};
use crate::vmm::firecracker::Jailer;
use env::Env;
pub use public_host::{PublicHost, PublicHostError};
pub use qemu::{AcceleratorChoice, GpuSettings, QemuSettings};

/// What a VMM may use beside its guest's memory unless the agent is told otherwise, in MiB. Firecracker
/// takes a few; an emulator keeps translated code.
const OVERHEAD_MIB: u64 = 512;

/// The user of a jailed VM number 0 unless the agent is told otherwise: beyond those of people,
/// services and most containers.
const FIRST_UID: u32 = 900_000;
/// Users below are somebody's.
const FIRST_UID_LEAST: u32 = 1000;

/// What differs between the programs built from this library.
#[derive(Debug, Clone, Copy)]
pub struct Backend {
    /// Name of the program.
    pub app_name: &'static str,
    /// `Server` header.
    pub server: &'static str,
    /// Prefix of its environment variables.
    pub prefix: &'static str,
    /// Default state root.
    pub root: &'static str,
    /// Default socket directory.
    pub socket_dir: &'static str,
    /// Default program of the VMM.
    pub vmm: &'static str,
    /// Default listen port.
    pub port: u16,
    /// Default base of the guests' host ports.
    pub port_base: u16,
    /// Default prefix of device names.
    pub tap_prefix: &'static str,
    /// Default memory of a VM in MiB.
    pub memory_mib: u32,
    /// Name of a VM's log.
    pub log: &'static str,
    /// Default name of the guests' kernel.
    pub kernel: &'static str,
    /// Default name of the default image.
    pub base: &'static str,
    /// Extension of named images.
    pub image_extension: &'static str,
    /// Whether it gives devices of the host to guests.
    pub gpus: bool,
}

/// The Firecracker agent.
pub const FIRECRACKER: Backend = Backend {
    app_name: "fc-agent",
    server: "fc-agent/0.1",
    prefix: "FC",
    root: "/home/ubuntu/fc",
    socket_dir: "/tmp/fuse-fc-socks",
    vmm: "/usr/local/bin/firecracker",
    port: 8090,
    port_base: 19550,
    tap_prefix: "fcv",
    memory_mib: 512,
    log: "fc.log",
    kernel: "vmlinux.bin",
    base: "rootfs-fused.ext4",
    image_extension: "ext4",
    gpus: false,
};

/// The QEMU agent.
pub const QEMU: Backend = Backend {
    app_name: "qemu-agent",
    server: "qemu-agent/0.1",
    prefix: "QEMU",
    root: "/home/ubuntu/qemu",
    socket_dir: "/tmp/fuse-qemu-socks",
    vmm: "/usr/bin/qemu-system-x86_64",
    port: 8091,
    port_base: 19650,
    tap_prefix: "qv",
    memory_mib: 1024,
    log: "qemu.log",
    kernel: "vmlinuz.bin",
    base: "rootfs-cuda.qcow2",
    image_extension: "qcow2",
    gpus: true,
};

/// Everything an agent is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which agent this is.
    pub backend: Backend,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Certificate and key of its listener; without, it speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Certificates that other agents may prove themselves by, beside the system's.
    pub agent_ca: Option<PathBuf>,
    /// The token that opens it.
    pub token: AgentToken,
    /// Host part of the URLs it hands out, if it was given.
    pub public_host: Option<PublicHost>,
    /// Bounds of HTTP requests.
    pub http: HttpLimits,
    /// Files and directories.
    pub paths: Paths,
    /// What jails VMMs, if they are to be jailed.
    pub jailer: Option<Jailer>,
    /// Networking.
    pub net: NetSettings,
    /// Defaults and bounds of VMs.
    pub vms: VmSettings,
    /// Bounds of transfers between hosts.
    pub artifacts: ArtifactSettings,
    /// What only hosts with devices to give away have.
    pub qemu: Option<QemuSettings>,
}

/// Bounds of transfers between hosts.
#[derive(Debug, Clone, Copy)]
pub struct ArtifactSettings {
    /// Largest artifact in bytes.
    pub max_bytes: u64,
    /// How long the other end may stay silent.
    pub io_limit: Duration,
    /// Bound of a whole transfer.
    pub transfer_limit: Duration,
}

/// Bounds of HTTP requests.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Largest ordinary body in bytes.
    pub body: usize,
    /// Largest upload body in bytes.
    pub upload: usize,
    /// How long a connection may stay silent while a request is read.
    pub idle: Duration,
}

/// Files and directories of an agent.
#[derive(Debug, Clone)]
pub struct Paths {
    /// State of VMs.
    pub state: PathBuf,
    /// Sockets of VMMs.
    pub sockets: PathBuf,
    /// Named images.
    pub images: PathBuf,
    /// Snapshots.
    pub snapshots: PathBuf,
    /// Disks that are arriving from other hosts, if that was given; in the file system of the
    /// snapshots.
    pub staging: Option<PathBuf>,
    /// The default image.
    pub base: PathBuf,
    /// Kernel that guests boot.
    pub kernel: PathBuf,
    /// Initramfs that guests boot.
    pub initrd: PathBuf,
    /// Program of the VMM.
    pub vmm: PathBuf,
}

/// Networking of an agent.
#[derive(Debug, Clone)]
pub struct NetSettings {
    /// Names, addresses and ports of VMs.
    pub plan: NetPlan,
    /// Name of the nftables table.
    pub table: String,
    /// Host ports for published guest ports.
    pub expose: RangeInclusive<u16>,
    /// Port of the public surface in guests.
    pub fused_port: u16,
    /// Name servers of guests.
    pub dns: Vec<IpAddr>,
}

/// Defaults and bounds of VMs.
#[derive(Debug, Clone, Copy)]
pub struct VmSettings {
    /// Memory when a request names none, in MiB.
    pub memory_mib: u32,
    /// Disk when a request names none, in GiB.
    pub storage_gib: u32,
    /// What must stay free where disks live, in MiB.
    pub min_free_mib: u64,
    /// How long a guest may take from power-on to answering.
    pub boot_limit: Duration,
    /// How long a VMM may take to write or load a guest's memory.
    pub memory_limit: Duration,
    /// Whether the host limits VMs.
    pub limits: Mode,
    /// What a VMM may use beside its guest's memory, in MiB.
    pub overhead_mib: u64,
    /// Bounds of a VM's disk.
    pub io: IoLimits,
}

/// A setting that cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A required variable is not set.
    #[error("{variable} is not set: {purpose}")]
    Missing {
        /// Its name.
        variable: String,
        /// What it is for.
        purpose: &'static str,
    },
    /// A variable has a value that cannot be used.
    #[error("{variable}={value:?} is not {expected}")]
    Invalid {
        /// Its name.
        variable: String,
        /// Its value; never a secret's.
        value: String,
        /// What it should be.
        expected: String,
    },
    /// Half of a certificate and its key.
    #[error(transparent)]
    Tls(#[from] OneOfTwo),
    /// The network plan does not work out.
    #[error("the network plan does not work: {0}")]
    Plan(PlanError),
    /// The public host cannot be used.
    #[error("PUBLIC_HOST cannot be used: {0}")]
    PublicHost(PublicHostError),
}

impl Config {
    /// Reads the settings of `backend` with `lookup`, which is the environment outside tests.
    /// Empty values count as absent.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn from_env(
        backend: Backend,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let env = Env::new(backend.prefix, &lookup);
        let token = env.own("AGENT_TOKEN").ok_or_else(|| ConfigError::Missing {
            variable: format!("{}_AGENT_TOKEN", backend.prefix),
            purpose: "the agent serves nobody without a token; set it to a long random string",
        })?;
        let bind: IpAddr = env.parse_own("AGENT_BIND", "0.0.0.0", "an IP address")?;
        let port: u16 = env.parse_own("AGENT_PORT", &backend.port.to_string(), "a port")?;
        let public_host = env
            .shared("PUBLIC_HOST")
            .map(|host| PublicHost::parse(&host));
        let body = env.number_own("AGENT_MAX_BODY_BYTES", limits::MAX_BODY_BYTES, 1024)?;
        let upload = env.number_own("AGENT_MAX_UPLOAD_BYTES", limits::MAX_UPLOAD_BYTES, 1024)?;
        let idle = env.number_own("AGENT_REQUEST_TIMEOUT", limits::REQUEST_IDLE.as_secs(), 1)?;
        let paths = paths(&env, backend);
        Ok(Self {
            backend,
            listen: SocketAddr::new(bind, port),
            tls: tls(&env)?,
            // Disks of other hosts are fetched by hosts without GPUs alone.
            agent_ca: env
                .own("AGENT_CA")
                .filter(|_| !backend.gpus)
                .map(PathBuf::from),
            token: AgentToken::new(token),
            public_host: public_host.transpose().map_err(ConfigError::PublicHost)?,
            http: HttpLimits {
                body,
                upload,
                idle: Duration::from_secs(idle),
            },
            jailer: jailer(&env, &paths)?,
            paths,
            net: net(&env, backend)?,
            vms: vms(&env, backend)?,
            artifacts: artifacts(&env)?,
            qemu: backend.gpus.then(|| qemu::read(&env)).transpose()?,
        })
    }
}

fn tls(env: &Env<'_>) -> Result<Option<TlsFiles>, OneOfTwo> {
    TlsFiles::named(
        (&env.own_name("AGENT_TLS_CERT"), env.own("AGENT_TLS_CERT")),
        (&env.own_name("AGENT_TLS_KEY"), env.own("AGENT_TLS_KEY")),
    )
}

fn paths(env: &Env<'_>, backend: Backend) -> Paths {
    let root = PathBuf::from(env.own("DIR").unwrap_or_else(|| backend.root.to_owned()));
    let path = |value: Option<String>, default: &str| {
        value.map_or_else(|| root.join(default), PathBuf::from)
    };
    Paths {
        state: root.join("agent-state"),
        sockets: path(env.own("SOCK_DIR"), backend.socket_dir),
        images: path(env.shared("IMAGES_DIR"), "images"),
        snapshots: path(env.shared("SNAPSHOTS_DIR"), "agent-state/snapshots"),
        staging: env.own("AGENT_ARTIFACT_TMP_DIR").map(PathBuf::from),
        base: path(env.shared("BASE_ROOTFS"), backend.base),
        kernel: path(env.own("KERNEL"), backend.kernel),
        initrd: path(env.own("INITRD"), "initramfs.img"),
        vmm: path(env.own("BIN"), backend.vmm),
    }
}

fn jailer(env: &Env<'_>, paths: &Paths) -> Result<Option<Jailer>, ConfigError> {
    let Some(program) = env.own("JAILER_BIN") else {
        return Ok(None);
    };
    // The jailer refuses any other, after it was started.
    let name = paths.vmm.file_name().unwrap_or_default();
    if !name.to_string_lossy().contains("firecracker") {
        let vmm = paths.vmm.display().to_string();
        let expected = "a program called firecracker…, which alone can be jailed";
        return Err(env::invalid(&env.own_name("BIN"), &vmm, expected));
    }
    if env.shared("FUSE_VM_LIMITS").as_deref() == Some("off") {
        let expected = "possible with a jailer, whose VMMs are found by their control groups";
        return Err(env::invalid("FUSE_VM_LIMITS", "off", expected));
    }
    let dir = env
        .own("JAILER_DIR")
        .map_or_else(|| paths.state.join("jail"), PathBuf::from);
    let first_uid = env.number_own("JAILER_UID_BASE", FIRST_UID, FIRST_UID_LEAST)?;
    Ok(Some(Jailer {
        program: program.into(),
        dir,
        first_uid,
    }))
}

fn net(env: &Env<'_>, backend: Backend) -> Result<NetSettings, ConfigError> {
    let max_vms = env.parse_shared("FUSE_MAX_VMS", "249", "a number of VMs from 1")?;
    let base = backend.port_base.to_string();
    let base = env.parse_shared("FUSE_HOST_PORT_BASE", &base, "a port")?;
    let tap = env
        .shared("FUSE_TAP_PREFIX")
        .unwrap_or_else(|| backend.tap_prefix.to_owned());
    let subnet = env
        .shared("FUSE_SUBNET")
        .unwrap_or_else(|| "10.200.0.0/16".to_owned());
    let plan = NetPlan::new(&tap, &subnet, base, max_vms).map_err(ConfigError::Plan)?;
    let table = env
        .shared("FUSE_NFT_TABLE")
        .unwrap_or_else(|| "fuse".to_owned());
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if !table.bytes().all(word) || !table.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(env::invalid(
            "FUSE_NFT_TABLE",
            &table,
            "a name of letters, digits and _",
        ));
    }
    let range = env
        .shared("FUSE_EXPOSE_PORT_RANGE")
        .unwrap_or_else(|| "20000-21999".to_owned());
    let expose = port_range(&range).ok_or_else(|| {
        env::invalid("FUSE_EXPOSE_PORT_RANGE", &range, "a range like 20000-21999")
    })?;
    let last = base.saturating_add(max_vms);
    if *expose.start() <= last && base < *expose.end() {
        let expected = format!("clear of the guests' own ports {}-{last}", base + 1);
        return Err(env::invalid("FUSE_EXPOSE_PORT_RANGE", &range, &expected));
    }
    let dns = env
        .shared("FUSE_GUEST_DNS")
        .unwrap_or_else(|| "1.1.1.1".to_owned());
    let servers: Result<Vec<IpAddr>, _> = dns.split(',').map(|s| s.trim().parse()).collect();
    let dns =
        servers.map_err(|_| env::invalid("FUSE_GUEST_DNS", &dns, "a list of IP addresses"))?;
    let fused_port = env.parse_shared("FUSED_PORT", "9550", "a port")?;
    Ok(NetSettings {
        plan,
        table,
        expose,
        fused_port,
        dns,
    })
}

fn vms(env: &Env<'_>, backend: Backend) -> Result<VmSettings, ConfigError> {
    let storage_gib: u32 = env.number_shared("FUSE_DEFAULT_STORAGE_GB", 10, 1)?;
    if storage_gib > MAX_GIB {
        let expected = format!("at most {MAX_GIB} GiB");
        return Err(env::invalid(
            "FUSE_DEFAULT_STORAGE_GB",
            &storage_gib.to_string(),
            &expected,
        ));
    }
    let longest = limits::BOOT_LIMIT.as_secs();
    let boot: u64 = env.number_shared("FUSE_BOOT_TIMEOUT", longest, 1)?;
    if boot > longest {
        // Callers give up on a create after this; a guest that came later would be nobody's.
        let expected = format!("at most {longest} s");
        return Err(env::invalid(
            "FUSE_BOOT_TIMEOUT",
            &boot.to_string(),
            &expected,
        ));
    }
    let wanted = env.shared("FUSE_VM_LIMITS");
    let mode = match wanted.as_deref() {
        None | Some("auto") => Mode::Auto,
        Some("required") => Mode::Required,
        Some("off") => Mode::Off,
        Some(other) => {
            return Err(env::invalid(
                "FUSE_VM_LIMITS",
                other,
                "auto, required or off",
            ));
        }
    };
    let megabytes: u64 = env.number_shared("FUSE_VM_IO_MBPS", 0, 0)?;
    let io = IoLimits {
        bytes: megabytes.saturating_mul(1_000_000),
        operations: env.number_shared("FUSE_VM_IOPS", 0, 0)?,
    };
    if io.any() && mode == Mode::Off {
        let expected = "possible with FUSE_VM_IO_MBPS or FUSE_VM_IOPS set";
        return Err(env::invalid("FUSE_VM_LIMITS", "off", expected));
    }
    let longest = limits::SNAPSHOT_LIMIT.as_secs();
    let memory = env.number_own("AGENT_SNAPSHOT_API_TIMEOUT", longest, 1)?;
    Ok(VmSettings {
        memory_mib: backend.memory_mib,
        storage_gib,
        min_free_mib: env.number_shared("FUSE_MIN_FREE_MB", 1024, 0)?,
        boot_limit: Duration::from_secs(boot),
        memory_limit: Duration::from_secs(memory),
        limits: mode,
        overhead_mib: env.number_shared("FUSE_VMM_OVERHEAD_MB", OVERHEAD_MIB, 64)?,
        io,
    })
}

fn artifacts(env: &Env<'_>) -> Result<ArtifactSettings, ConfigError> {
    let (io, transfer) = (limits::ARTIFACT_IO, limits::ARTIFACT_TRANSFER);
    let max_bytes = limits::MAX_ARTIFACT_BYTES;
    let io = env.number_own("AGENT_ARTIFACT_IO_TIMEOUT", io.as_secs(), 1)?;
    let transfer = env.number_own("AGENT_ARTIFACT_TRANSFER_TIMEOUT", transfer.as_secs(), 1)?;
    Ok(ArtifactSettings {
        max_bytes: env.number_own("AGENT_MAX_ARTIFACT_BYTES", max_bytes, 1)?,
        io_limit: Duration::from_secs(io),
        transfer_limit: Duration::from_secs(transfer),
    })
}

fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-')?;
    let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first > 0 && first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests;
