//! Keeps what users run from starving the guest agent.
//!
//! ```text
//! /sys/fs/cgroup
//!   fuse.control    PID 1: first call on CPU, memory that is never reclaimed
//!   fuse.surface    the public surface
//!   fuse.user       everything that is started for users: bounded memory and processes
//!     exec-1 ...    one group per command, so that it can be ended with all its descendants
//! ```
//!
//! The groups of commands have no controllers: the bounds are those of `fuse.user`, and a group
//! with controllers costs several times as much to make and remove.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::init::InitError;

const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: [&str; 4] = ["cpu", "memory", "pids", "io"];

const MIB: u64 = 1024 * 1024;
/// Bounds of the memory that users cannot have.
const RESERVE: std::ops::RangeInclusive<u64> = 48 * MIB..=256 * MIB;

/// The groups of a running guest.
#[derive(Debug)]
pub(crate) struct Cgroups {
    root: PathBuf,
    next: AtomicU64,
    /// Groups of commands that left processes behind when they ended.
    left: Mutex<Vec<PathBuf>>,
}

impl Cgroups {
    /// Makes the groups in the mounted hierarchy and moves this process into its own.
    ///
    /// # Errors
    /// A group cannot be made or joined. A missing controller is not an error.
    pub(crate) fn set_up() -> Result<Self, InitError> {
        let root = PathBuf::from(ROOT);
        enable_controllers(&root);
        for name in ["fuse.control", "fuse.surface", "fuse.user"] {
            let dir = root.join(name);
            fs::create_dir_all(&dir).map_err(|e| InitError::file("make", &dir, e))?;
        }
        let procs = root.join("fuse.control/cgroup.procs");
        fs::write(&procs, "1").map_err(|e| InitError::file("write", &procs, e))?;
        let reserve = reserve_bytes();
        let limits = [
            ("fuse.control/cpu.weight", 10_000),
            ("fuse.control/memory.min", reserve),
            ("fuse.surface/cpu.weight", 1_000),
            (
                "fuse.user/memory.max",
                memory_total().saturating_sub(reserve),
            ),
            ("fuse.user/pids.max", user_processes()),
        ];
        for (file, value) in limits {
            let path = root.join(file);
            if let Err(error) = fs::write(&path, value.to_string()) {
                tracing::warn!(path = %path.display(), %error, "limit not set");
            }
        }
        Ok(Self {
            root,
            next: AtomicU64::new(1),
            left: Mutex::default(),
        })
    }

    /// A new group for one command.
    ///
    /// # Errors
    /// The group cannot be made.
    pub(crate) fn command(&self) -> io::Result<Group> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join("fuse.user").join(format!("exec-{number}"));
        fs::create_dir(&path)?;
        Ok(Group { path })
    }

    /// The group of the public surface.
    pub(crate) fn surface(&self) -> Group {
        Group {
            path: self.root.join("fuse.surface"),
        }
    }

    /// Ends everything that runs for users.
    pub(crate) fn kill_users(&self) -> io::Result<()> {
        Group {
            path: self.root.join("fuse.user"),
        }
        .kill()
    }

    /// Removes a command's group, now or when the last process in it has ended.
    pub(crate) fn retire(&self, group: Group) {
        // Under the lock, so that a sweep sees it if its last process ends meanwhile.
        if let Ok(mut left) = self.left.lock()
            && fs::remove_dir(&group.path).is_err()
        {
            left.push(group.path);
        }
    }

    /// Removes retired groups that have become empty.
    pub(crate) fn sweep(&self) {
        if let Ok(mut left) = self.left.lock() {
            left.retain(|path| {
                fs::remove_dir(path).is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy)
            });
        }
    }
}

/// One group.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    /// A descriptor that a child writes `0` to in order to join.
    pub(crate) fn procs(&self) -> io::Result<OwnedFd> {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(self.path.join("cgroup.procs"))?;
        Ok(file.into())
    }

    /// Whether no process is in it.
    pub(crate) fn is_empty(&self) -> bool {
        fs::read(self.path.join("cgroup.procs")).is_ok_and(|procs| procs.is_empty())
    }

    /// Ends every process in it, at once and without a chance to fork away.
    pub(crate) fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }
}

fn enable_controllers(group: &Path) {
    let file = group.join("cgroup.subtree_control");
    for controller in CONTROLLERS {
        // One at a time: a kernel without one of them still gets the others.
        if let Err(error) = fs::write(&file, format!("+{controller}")) {
            tracing::warn!(controller, group = %group.display(), %error, "controller not enabled");
        }
    }
}

/// Memory kept from users: a sixteenth of all, within [`RESERVE`].
pub(crate) fn reserve_bytes() -> u64 {
    (memory_total() / 16).clamp(*RESERVE.start(), *RESERVE.end())
}

fn memory_total() -> u64 {
    let info = rustix::system::sysinfo();
    // The field's width is the kernel's word size.
    #[expect(clippy::useless_conversion, reason = "u32 on 32-bit machines")]
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

/// Three quarters of the threads that this kernel can have.
fn user_processes() -> u64 {
    let number = |path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let threads = number("/proc/sys/kernel/threads-max").unwrap_or(4096);
    let pids = number("/proc/sys/kernel/pid_max").unwrap_or(32_768);
    threads.min(pids) / 4 * 3
}
