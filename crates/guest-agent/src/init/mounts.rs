//! The kernel's own file systems and the temporary ones.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::mount::MountFlags;

use super::InitError;

/// A file system without a device.
struct Virtual {
    kind: &'static str,
    target: &'static str,
    flags: MountFlags,
    options: &'static str,
}

const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const SAFEST: MountFlags = SAFE.union(MountFlags::NOEXEC);

/// Needed to load modules and to find disks.
const EARLY: [Virtual; 3] = [
    Virtual {
        kind: "proc",
        target: "/proc",
        flags: SAFEST,
        options: "",
    },
    Virtual {
        kind: "sysfs",
        target: "/sys",
        flags: SAFEST,
        options: "",
    },
    Virtual {
        kind: "devtmpfs",
        target: "/dev",
        flags: MountFlags::NOSUID,
        options: "mode=755",
    },
];

/// Mounted below the new root, after the early ones have moved there.
const SYSTEM: [Virtual; 5] = [
    Virtual {
        kind: "devpts",
        target: "dev/pts",
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        options: "gid=5,mode=620,ptmxmode=666",
    },
    Virtual {
        kind: "tmpfs",
        target: "dev/shm",
        flags: SAFE,
        options: "mode=1777",
    },
    Virtual {
        kind: "tmpfs",
        target: "run",
        flags: SAFE,
        options: "mode=755,size=20%",
    },
    Virtual {
        kind: "tmpfs",
        target: "tmp",
        flags: SAFE,
        options: "mode=1777,size=50%",
    },
    // Credentials live here: in memory only, so that no snapshot of a disk holds them.
    Virtual {
        kind: "tmpfs",
        target: "fuse",
        flags: SAFE,
        options: "mode=700,size=32m",
    },
];

/// Links that the device file system does not make by itself.
const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
];

/// Mounts what the first steps need.
pub(super) fn early() -> Result<(), InitError> {
    EARLY
        .iter()
        .try_for_each(|it| mount_virtual(it, Path::new("/")))
}

/// Moves the early mounts below `root` and adds the rest.
pub(super) fn system(root: &str) -> Result<(), InitError> {
    let root = Path::new(root);
    for it in &EARLY {
        let target = root.join(it.target.trim_start_matches('/'));
        make_dir(&target)?;
        rustix::mount::mount_move(it.target, &target)
            .map_err(|e| InitError::mount(it.kind, &target, e))?;
    }
    SYSTEM.iter().try_for_each(|it| mount_virtual(it, root))?;
    mount_cgroups(root)?;
    for (target, link) in LINKS {
        let link = root.join(link);
        symlink(target, &link).map_err(|e| InitError::file("make", &link, e))?;
    }
    Ok(())
}

/// Every command gets a group of its own. Without `favordynmods` a process that
/// joins one waits for all CPUs to have passed a quiet point, tens of
/// milliseconds; kernels before 6.0 do not know it.
fn mount_cgroups(root: &Path) -> Result<(), InitError> {
    let groups = |options| Virtual {
        kind: "cgroup2",
        target: "sys/fs/cgroup",
        flags: SAFEST,
        options,
    };
    mount_virtual(&groups("favordynmods"), root).or_else(|_| mount_virtual(&groups(""), root))
}

fn mount_virtual(it: &Virtual, root: &Path) -> Result<(), InitError> {
    let target = root.join(it.target);
    make_dir(&target)?;
    mount(it.kind, it.kind, &target, it.flags, it.options)
}

/// Mounts a file system.
pub(super) fn mount(
    source: &str,
    kind: &str,
    target: &Path,
    flags: MountFlags,
    options: &str,
) -> Result<(), InitError> {
    let data = CString::new(options).map_err(|e| InitError::mount(source, target, e))?;
    rustix::mount::mount(source, target, kind, flags, Some(data.as_c_str()))
        .map_err(|e| InitError::mount(source, target, e))
}

/// Makes a directory and its parents; fine if it is there.
pub(super) fn make_dir(path: &Path) -> Result<(), InitError> {
    fs::create_dir_all(path).map_err(|e| InitError::file("make", path, e))
}

/// Writes a whole file.
pub(super) fn write(path: &str, content: &str) -> Result<(), InitError> {
    fs::write(path, content).map_err(|e| InitError::file("write", Path::new(path), e))
}
