//! The root file system: a read-only base shared by all VMs, and this VM's own
//! overlay on top.
//!
//! ```text
//! /dev/vda  ext4, read-only -------------> lower --+
//! /dev/vdb  ext4: upper/, work/ ---------> upper --+--> overlay = /
//!                 containers/ -----------> bind mount on /var/lib/containers
//! ```
//!
//! Container storage wants to make overlays of its own, which the kernel
//! refuses on an overlay; hence the bind mount.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};

use super::InitError;
use super::mounts::{make_dir, mount};
use crate::sys;

/// Where the new root is put together.
pub(super) const NEW_ROOT: &str = "/newroot";

const BASE: &str = "/base";
const BASE_DEVICE: &str = "/dev/vda";
const OVERLAY: &str = "/overlay";
const OVERLAY_DEVICE: &str = "/dev/vdb";

/// The directory of the overlay disk that is mounted as it is.
const CONTAINERS: &str = "var/lib/containers";

/// Directories can be renamed although they come from the base.
const OVERLAY_OPTIONS: &str =
    "lowerdir=/base,upperdir=/overlay/upper,workdir=/overlay/work,redirect_dir=on";

/// Mounts both disks and the overlay of them.
pub(super) fn assemble() -> Result<(), InitError> {
    present(BASE_DEVICE, "the base image")?;
    present(OVERLAY_DEVICE, "the VM's own disk")?;
    let (base, overlay, root) = (Path::new(BASE), Path::new(OVERLAY), Path::new(NEW_ROOT));
    for dir in [base, overlay, root] {
        make_dir(dir)?;
    }
    mount(
        BASE_DEVICE,
        "ext4",
        base,
        MountFlags::RDONLY | MountFlags::NOATIME,
        "",
    )?;
    match content(OVERLAY_DEVICE)? {
        Content::Ext4 => {}
        Content::Blank => format()?,
        Content::Other => {
            return Err(InitError::ForeignDisk {
                device: OVERLAY_DEVICE,
            });
        }
    }
    // Blocks that the guest frees are given back to the host's sparse file.
    mount(
        OVERLAY_DEVICE,
        "ext4",
        overlay,
        MountFlags::NOATIME,
        "discard",
    )?;
    if let Err(error) = grow(overlay) {
        // Smaller than it could be, and good all the same.
        tracing::warn!(%error, "the disk's file system does not grow");
    }
    for dir in ["upper", "work", "containers"] {
        make_dir(&overlay.join(dir))?;
    }
    mount(
        "overlay",
        "overlay",
        root,
        MountFlags::NOATIME,
        OVERLAY_OPTIONS,
    )?;
    let containers = root.join(CONTAINERS);
    make_dir(&containers)?;
    rustix::mount::mount_bind(overlay.join("containers"), &containers)
        .map_err(|e| InitError::mount("container storage", &containers, e))
}

/// Makes the guest agent's program a file of the new root, under [`crate::PROGRAM`] and, unless the
/// image has one of its own there, where commands are searched.
pub(super) fn keep_program() -> Result<(), InitError> {
    let root = Path::new(NEW_ROOT);
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let target = below(crate::PROGRAM);
    fs::write(&target, "").map_err(|e| InitError::file("make", &target, e))?;
    // The file is in memory already and stays there as long as this process runs.
    rustix::mount::mount_bind("/init", &target)
        .map_err(|e| InitError::mount("the guest agent", &target, e))?;
    let link = below(PROGRAM_LINK);
    if let Some(dir) = link.parent() {
        make_dir(dir)?;
    }
    if fs::symlink_metadata(&link).is_ok() {
        return Ok(());
    }
    std::os::unix::fs::symlink(crate::PROGRAM, &link).map_err(|e| InitError::file("make", &link, e))
}

/// Makes the new root the root, and frees the memory of the initramfs.
pub(super) fn switch() -> Result<(), InitError> {
    for path in ["/modules", "/init"] {
        // What stays costs memory, nothing else.
        drop(fs::remove_dir_all(path).or_else(|_| fs::remove_file(path)));
    }
    let switched = || -> io::Result<()> {
        rustix::process::chdir(NEW_ROOT)?;
        rustix::mount::mount_move(".", "/")?;
        rustix::process::chroot(".")?;
        rustix::process::chdir("/")?;
        Ok(())
    };
    switched().map_err(InitError::SwitchRoot)
}

/// Whether commands can run in the new root.
pub(super) fn check_usable() -> Result<(), InitError> {
    let shell = fs::metadata("/bin/sh").map_err(InitError::NoShell)?;
    if shell.is_file() && shell.permissions().mode() & 0o111 != 0 {
        return Ok(());
    }
    Err(InitError::NoShell(io::ErrorKind::PermissionDenied.into()))
}

/// 16 bytes that identify the overlay's file system.
pub(super) fn overlay_uuid() -> io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    let mut file = File::open(OVERLAY_DEVICE)?;
    file.seek(SeekFrom::Start(SUPERBLOCK + 0x68))?;
    file.read_exact(&mut uuid)?;
    Ok(uuid)
}

/// A fork may have a larger disk than its source: lets the file system fill the disk.
fn grow(mounted: &Path) -> io::Result<()> {
    let disk = File::open(OVERLAY_DEVICE)?.seek(SeekFrom::End(0))?;
    let file_system = rustix::fs::statvfs(mounted)?;
    let blocks = disk / file_system.f_bsize.max(1);
    // Less than a block group more is no room for one.
    let room = disk.saturating_sub(file_system_bytes()?);
    if room < MIN_GROWTH {
        return Ok(());
    }
    sys::grow_ext4(&File::open(mounted)?, blocks)
}

/// Size of the file system by its superblock; `statvfs` leaves its own bookkeeping out.
fn file_system_bytes() -> io::Result<u64> {
    let mut superblock = [0; 1024];
    let mut file = File::open(OVERLAY_DEVICE)?;
    file.seek(SeekFrom::Start(SUPERBLOCK))?;
    file.read_exact(&mut superblock)?;
    let number = |at: usize| {
        let bytes = [0, 1, 2, 3].map(|n| superblock[at + n]);
        u64::from(u32::from_le_bytes(bytes))
    };
    let blocks = number(0x4) | number(0x150) << 32;
    Ok(blocks << (10 + number(0x18).min(6)))
}

fn present(device: &'static str, role: &'static str) -> Result<(), InitError> {
    if Path::new(device).exists() {
        Ok(())
    } else {
        Err(InitError::NoDisk { device, role })
    }
}

enum Content {
    Blank,
    Ext4,
    Other,
}

/// Where a shell finds the guest agent.
const PROGRAM_LINK: &str = "/usr/local/bin/fused";

const SUPERBLOCK: u64 = 1024;

/// One block group of 4 KiB blocks.
const MIN_GROWTH: u64 = 128 * 1024 * 1024;

/// Tells a blank disk from one with data by its first 64 KiB, where every
/// file system, partition table and volume manager leaves a mark.
fn content(device: &str) -> Result<Content, InitError> {
    let failed = |e| InitError::file("read", Path::new(device), e);
    let mut start = Vec::with_capacity(64 * 1024);
    File::open(device)
        .map_err(failed)?
        .take(64 * 1024)
        .read_to_end(&mut start)
        .map_err(failed)?;
    let magic = start.get(1024 + 0x38..1024 + 0x3a);
    Ok(match magic {
        Some([0x53, 0xef]) => Content::Ext4,
        _ if start.iter().all(|byte| *byte == 0) => Content::Blank,
        _ => Content::Other,
    })
}

/// Formats the overlay disk with the base image's own tool.
fn format() -> Result<(), InitError> {
    let failed = |reason: String| InitError::Format {
        device: OVERLAY_DEVICE,
        reason,
    };
    let devices = Path::new(BASE).join("dev");
    rustix::mount::mount_bind("/dev", &devices)
        .map_err(|e| InitError::mount("/dev", &devices, e))?;
    let mut command = Command::new("/sbin/mkfs.ext4");
    command
        .args([
            "-q",
            "-m",
            "0",
            "-E",
            "lazy_itable_init=1,lazy_journal_init=1",
            OVERLAY_DEVICE,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    sys::confine(&mut command, Path::new(BASE)).map_err(|e| failed(e.to_string()))?;
    let output = command.output();
    let unmounted = rustix::mount::unmount(&devices, UnmountFlags::DETACH);
    let output = output.map_err(|e| {
        failed(format!(
            "the base image has no usable /sbin/mkfs.ext4 ({e}); \
             give the VM an overlay disk that is formatted already"
        ))
    })?;
    if !output.status.success() {
        return Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    unmounted.map_err(|e| InitError::mount("/dev", &devices, e))
}
