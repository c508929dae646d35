//! What must be true of a host before an agent serves. One message each, which says what is wrong
//! and what to do.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::Config;
use crate::tools;

/// Programs that the agent runs.
#[derive(Debug, Clone)]
pub struct Tools {
    /// Packet rules.
    pub nft: PathBuf,
    /// Overlay templates.
    pub mkfs: PathBuf,
}

/// A host that an agent cannot serve on.
#[derive(Debug, Error)]
pub enum PreflightError {
    /// Not root.
    #[error(
        "{app} needs root: it makes network devices and packet rules (CAP_NET_ADMIN) and VM disks; \
         start it with sudo or as a system service"
    )]
    Privileges {
        /// The program.
        app: &'static str,
    },
    /// A program is not installed.
    #[error("the program {tool} is not installed; on Debian and Ubuntu: apt-get install {package}")]
    Tool {
        /// The program.
        tool: &'static str,
        /// Package that brings it.
        package: &'static str,
    },
    /// No TAP devices.
    #[error("/dev/net/tun is missing; load the kernel module: modprobe tun")]
    Tun,
    /// The VMM, or its jailer, is not there.
    #[error("the VMM {} {problem}; set {variable} to its path", .path.display())]
    Vmm {
        /// Where it should be.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
        /// What names it.
        variable: String,
    },
    /// A part of the guest image is not there.
    #[error("the guest's {what} {} is missing; run: {app} image build --out {}",
        .path.display(), .path.parent().unwrap_or(Path::new(".")).display())]
    Image {
        /// Which part.
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
        /// The program.
        app: &'static str,
    },
    /// The firmware is not there.
    #[error("the firmware {} is missing: apt-get install ovmf, or leave OVMF_CODE empty", .path.display())]
    Firmware {
        /// Where it should be.
        path: PathBuf,
    },
    /// The firmware cannot start the kernel.
    #[error(
        "UEFI firmware (OVMF_CODE) cannot start {}, which is an uncompressed kernel; set \
         {prefix}_KERNEL to a vmlinuz: `{app} image build --refresh` makes one", .path.display()
    )]
    FirmwareKernel {
        /// The kernel.
        path: PathBuf,
        /// Prefix of the program's variables.
        prefix: &'static str,
        /// The program.
        app: &'static str,
    },
    /// Somebody listens already.
    #[error("{address} is already in use; stop the other program or set {prefix}_AGENT_PORT")]
    PortInUse {
        /// The address.
        address: SocketAddr,
        /// Prefix of the program's variables.
        prefix: &'static str,
    },
    /// The address cannot be bound.
    #[error("cannot listen on {address}; see {prefix}_AGENT_BIND and {prefix}_AGENT_PORT")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Prefix of the program's variables.
        prefix: &'static str,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

/// Checks what a VMM needs: its program and the image it boots.
///
/// # Errors
/// The first thing that is missing.
pub fn machine(config: &Config) -> Result<(), PreflightError> {
    programs(config)?;
    image(config)?;
    firmware(config)
}

/// Checks the VMM's program, and its jailer's if there is to be one.
///
/// # Errors
/// One is missing.
pub fn programs(config: &Config) -> Result<(), PreflightError> {
    let prefix = config.backend.prefix;
    let jailer = config.jailer.as_ref().map(|jailer| &jailer.program);
    let programs = [(Some(&config.paths.vmm), "BIN"), (jailer, "JAILER_BIN")];
    for (path, variable) in programs {
        let Some(path) = path else { continue };
        let problem = match (path.exists(), tools::is_executable(path)) {
            (false, _) => "does not exist",
            (true, false) => "is not an executable file",
            (true, true) => continue,
        };
        return Err(PreflightError::Vmm {
            path: path.clone(),
            problem,
            variable: format!("{prefix}_{variable}"),
        });
    }
    Ok(())
}

/// Checks that what guests boot is there.
///
/// # Errors
/// The first part that is missing.
pub fn image(config: &Config) -> Result<(), PreflightError> {
    let app = config.backend.app_name;
    for (what, path) in [
        ("kernel", &config.paths.kernel),
        ("initramfs", &config.paths.initrd),
        ("base image", &config.paths.base),
    ] {
        if !path.is_file() {
            return Err(PreflightError::Image {
                what,
                path: path.clone(),
                app,
            });
        }
    }
    Ok(())
}

/// Checks the firmware, if guests begin with any.
///
/// # Errors
/// It is missing, or cannot start the kernel.
pub fn firmware(config: &Config) -> Result<(), PreflightError> {
    let firmware = config.qemu.as_ref().and_then(|qemu| qemu.firmware.as_ref());
    firmware.map_or(Ok(()), |path| firmware_starts(path, config))
}

/// Whether guests can begin with the firmware.
fn firmware_starts(firmware: &Path, config: &Config) -> Result<(), PreflightError> {
    if !firmware.is_file() {
        let path = firmware.to_owned();
        return Err(PreflightError::Firmware { path });
    }
    let mut head = [0; 4];
    let kernel = &config.paths.kernel;
    let read = std::fs::File::open(kernel).and_then(|mut file| file.read_exact(&mut head));
    if read.is_ok() && head == *b"\x7fELF" {
        return Err(PreflightError::FirmwareKernel {
            path: kernel.clone(),
            prefix: config.backend.prefix,
            app: config.backend.app_name,
        });
    }
    Ok(())
}

/// Finds the tools that make disks.
///
/// # Errors
/// One is not installed.
pub fn mkfs() -> Result<PathBuf, PreflightError> {
    find("mkfs.ext4", "e2fsprogs")
}

/// Checks what changing the host's network needs, and finds its tool.
///
/// # Errors
/// The first thing that is missing.
pub fn network(config: &Config) -> Result<PathBuf, PreflightError> {
    if !may_administer_network() {
        return Err(PreflightError::Privileges {
            app: config.backend.app_name,
        });
    }
    find("nft", "nftables")
}

/// Checks everything that serving needs.
///
/// # Errors
/// The first thing that is missing.
pub fn serve(config: &Config) -> Result<Tools, PreflightError> {
    let tools = Tools {
        nft: network(config)?,
        mkfs: mkfs()?,
    };
    if !Path::new("/dev/net/tun").exists() {
        return Err(PreflightError::Tun);
    }
    machine(config)?;
    Ok(tools)
}

/// Says what a failed bind means.
#[must_use]
pub fn listen_error(config: &Config, source: io::Error) -> PreflightError {
    let (address, prefix) = (config.listen, config.backend.prefix);
    if source.kind() == io::ErrorKind::AddrInUse {
        PreflightError::PortInUse { address, prefix }
    } else {
        PreflightError::Listen {
            address,
            prefix,
            source,
        }
    }
}

fn find(tool: &'static str, package: &'static str) -> Result<PathBuf, PreflightError> {
    tools::find(tool).ok_or(PreflightError::Tool { tool, package })
}

fn may_administer_network() -> bool {
    let capable = rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(rustix::thread::CapabilitySet::NET_ADMIN)
    });
    capable && rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FIRECRACKER, QEMU};
    use std::os::unix::fs::PermissionsExt;

    fn config(dir: &Path) -> Config {
        let dir = dir.to_str().unwrap().to_owned();
        Config::from_env(FIRECRACKER, move |name| match name {
            "FC_DIR" => Some(dir.clone()),
            "FC_BIN" => Some(format!("{dir}/vmm")),
            "FC_AGENT_TOKEN" => Some("t".to_owned()),
            _ => None,
        })
        .unwrap()
    }

    #[test]
    fn each_missing_part_has_its_message() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let check = |want: &str| {
            let error = machine(&config).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        };
        check("vmm does not exist; set FC_BIN to its path");
        std::fs::write(&config.paths.vmm, b"").unwrap();
        check("vmm is not an executable file");
        std::fs::set_permissions(&config.paths.vmm, PermissionsExt::from_mode(0o755)).unwrap();
        check("the guest's kernel");
        std::fs::write(&config.paths.kernel, b"").unwrap();
        check("the guest's initramfs");
        std::fs::write(&config.paths.initrd, b"").unwrap();
        check(&format!(
            "run: fc-agent image build --out {}",
            dir.path().display()
        ));
        std::fs::write(&config.paths.base, b"").unwrap();
        machine(&config).unwrap();
    }

    #[test]
    fn firmware_that_cannot_start_the_kernel_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let config = Config::from_env(QEMU, |name| match name {
            "QEMU_DIR" => Some(path("")),
            "QEMU_BIN" => Some("/bin/true".to_owned()),
            "OVMF_CODE" => Some(path("firmware")),
            "QEMU_AGENT_TOKEN" => Some("t".to_owned()),
            _ => None,
        })
        .unwrap();
        for file in [&config.paths.initrd, &config.paths.base] {
            std::fs::write(file, b"x").unwrap();
        }
        std::fs::write(&config.paths.kernel, b"\x7fELF uncompressed").unwrap();
        let error = || machine(&config).unwrap_err().to_string();
        assert!(error().contains("apt-get install ovmf"), "{}", error());
        std::fs::write(path("firmware"), b"x").unwrap();
        assert!(
            error().contains("set QEMU_KERNEL to a vmlinuz"),
            "{}",
            error()
        );
        std::fs::write(&config.paths.kernel, b"MZ").unwrap();
        machine(&config).unwrap();
    }

    #[test]
    fn a_port_in_use_names_the_variable() {
        let dir = tempfile::tempdir().unwrap();
        let error = listen_error(&config(dir.path()), io::ErrorKind::AddrInUse.into());
        assert_eq!(
            error.to_string(),
            "0.0.0.0:8090 is already in use; stop the other program or set FC_AGENT_PORT"
        );
    }
}
