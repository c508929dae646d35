//! The only unsafe code of the guest agent: work done in a child between its
//! start and exec.
//!
//! Everything in here that runs in the child makes direct system calls on
//! values prepared before the fork. It does not allocate, lock or touch the
//! environment, since other threads of the parent may have held any lock.

#![expect(
    unsafe_code,
    reason = "Command::pre_exec and clone are unsafe by nature; see the module's rules"
)]

mod borrowed;

pub(crate) use borrowed::Program;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Where and how a child runs.
#[derive(Debug, Default)]
pub(crate) struct ChildSetup {
    /// `cgroup.procs` of the group to join, open for writing.
    pub(crate) cgroup: Option<OwnedFd>,
    /// How readily the kernel ends it when memory runs out, -1000 (never) to 1000.
    pub(crate) oom_score_adj: Option<&'static str>,
}

impl ChildSetup {
    /// To be called in the child.
    fn apply(&self) -> Result<(), Errno> {
        if let Some(cgroup) = &self.cgroup {
            rustix::io::write(cgroup.as_fd(), b"0")?;
        }
        if let Some(score) = self.oom_score_adj {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty())?;
            rustix::io::write(&file, score.as_bytes())?;
        }
        Ok(())
    }
}

/// Makes `command` start in a session of its own, set up as told.
pub(crate) fn isolate(command: &mut Command, setup: ChildSetup) {
    let in_child = move || {
        rustix::process::setsid()?;
        Ok(setup.apply()?)
    };
    // SAFETY: the closure only makes system calls with arguments that exist
    // already (two descriptors and static strings) and neither allocates nor locks.
    unsafe { command.pre_exec(in_child) };
}

/// Makes `command` run with `root` as its root directory.
///
/// # Errors
/// The path holds a NUL byte.
pub(crate) fn confine(command: &mut Command, root: &Path) -> io::Result<()> {
    let root = std::ffi::CString::new(PathBuf::from(root).into_os_string().into_encoded_bytes())?;
    let in_child = move || {
        rustix::process::chroot(root.as_c_str())?;
        rustix::process::chdir(c"/")?;
        Ok(())
    };
    // SAFETY: as above; the string was made before the fork.
    unsafe { command.pre_exec(in_child) };
    Ok(())
}

/// Lets the runtime watch a non-blocking descriptor.
///
/// # Errors
/// The kernel cannot watch it.
pub(crate) fn watch_fd(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one open descriptor until it is dropped, and
    // nobody can take it out of the result while it is registered.
    Ok(unsafe { AsyncFd::register(fd) }?)
}
