//! The only unsafe code of the guest agent: work done in a child between its
//! start and exec, and requests that only `ioctl` has.
//!
//! Everything in here that runs in the child makes direct system calls on
//! values prepared before the fork. It does not allocate, lock or touch the
//! environment, since other threads of the parent may have held any lock.

#![expect(
    unsafe_code,
    reason = "Command::pre_exec, clone and ioctl are unsafe by nature; see the module's rules"
)]

mod borrowed;

pub(crate) use borrowed::Program;

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, NoArg, Opcode, Setter, ioctl, opcode};
use tokio::io::unix::AsyncFd;

/// Where and how a child runs.
#[derive(Debug, Default)]
pub(crate) struct ChildSetup {
    /// `cgroup.procs` of the group to join, open for writing.
    pub(crate) cgroup: Option<OwnedFd>,
    /// How readily the kernel ends it when memory runs out, -1000 (never) to 1000.
    pub(crate) oom_score_adj: Option<&'static str>,
    /// Its standard input is a terminal, which becomes its session's.
    pub(crate) terminal: bool,
}

impl ChildSetup {
    /// To be called in the child.
    fn apply(&self) -> Result<(), Errno> {
        if self.terminal {
            // SAFETY: a child's standard input is open.
            let stdin = unsafe { BorrowedFd::borrow_raw(0) };
            rustix::process::ioctl_tiocsctty(stdin)?;
        }
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

/// The kernel's numbers of the requests below; see `linux/fs.h`, `linux/random.h` and ext4's own.
const FIFREEZE: Opcode = opcode::read_write::<i32>(b'X', 119);
const FITHAW: Opcode = opcode::read_write::<i32>(b'X', 120);
const EXT4_IOC_RESIZE_FS: Opcode = opcode::write::<u64>(b'f', 16);
const RNDRESEEDCRNG: Opcode = opcode::none(b'R', 0x07);

/// As in `asm-generic/ioctls.h`, where they have no structure to derive them from.
const TIOCSWINSZ: Opcode = 0x5414;
const TIOCGPTN: Opcode = opcode::read::<u32>(b'T', 0x30);
const TIOCSPTLCK: Opcode = opcode::write::<i32>(b'T', 0x31);

/// Makes the other end of a new terminal usable; returns its number.
///
/// # Errors
/// It is no terminal.
pub(crate) fn unlock_terminal(master: &std::fs::File) -> io::Result<u32> {
    // SAFETY: the request reads an int.
    unsafe { ioctl(master, Setter::<TIOCSPTLCK, i32>::new(0)) }?;
    // SAFETY: the request writes an unsigned int.
    Ok(unsafe { ioctl(master, Getter::<TIOCGPTN, u32>::new()) }?)
}

/// Sets the size of a terminal.
///
/// # Errors
/// It is no terminal.
pub(crate) fn set_terminal_size(master: &OwnedFd, rows: u16, cols: u16) -> io::Result<()> {
    let size: [u16; 4] = [rows, cols, 0, 0];
    // SAFETY: the request reads a `struct winsize`, which is four unsigned shorts.
    Ok(unsafe { ioctl(master, Setter::<TIOCSWINSZ, [u16; 4]>::new(size)) }?)
}

/// Writes a file system back and keeps everybody from writing to it.
///
/// # Errors
/// The kernel refuses, for example because it is frozen.
pub(crate) fn freeze(mounted: &std::fs::File) -> io::Result<()> {
    // SAFETY: the request ignores its argument.
    Ok(unsafe { ioctl(mounted, IntegerSetter::<FIFREEZE>::new_usize(0)) }?)
}

/// Ends a freeze.
///
/// # Errors
/// The file system is not frozen.
pub(crate) fn thaw(mounted: &std::fs::File) -> io::Result<()> {
    // SAFETY: the request ignores its argument.
    Ok(unsafe { ioctl(mounted, IntegerSetter::<FITHAW>::new_usize(0)) }?)
}

/// Makes a mounted ext4 file system `blocks` blocks large.
///
/// # Errors
/// The kernel refuses, for example because the disk is smaller.
pub(crate) fn grow_ext4(mounted: &std::fs::File, blocks: u64) -> io::Result<()> {
    // SAFETY: the request reads a 64-bit number.
    Ok(unsafe { ioctl(mounted, Setter::<EXT4_IOC_RESIZE_FS, u64>::new(blocks)) }?)
}

/// Makes what was written to the random device count at once.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn reseed_random(device: &std::fs::File) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    Ok(unsafe { ioctl(device, NoArg::<RNDRESEEDCRNG>::new()) }?)
}
