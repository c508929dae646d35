//! The calls that the standard library does not wrap: the only unsafe code here.
#![expect(unsafe_code, reason = "fork hooks and the TAP ioctl have no safe form")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};
use tokio::process::Command;

/// Makes `command` a child that dies with this process, however it ends, and
/// that inherits `fds` under their present numbers.
///
/// The kernel ties the child to the *thread* that starts it, so `command` must
/// be spawned by a thread that lives as long as the process.
pub(crate) fn bind_child(command: &mut Command, fds: Vec<RawFd>) {
    let parent = Pid::this();
    let hook = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have died before the line above: nobody would tell us.
        if getppid() != parent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        for fd in &fds {
            // SAFETY: the parent holds these descriptors open until spawn has returned.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(*fd) };
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: the hook makes plain system calls only; it neither allocates nor takes locks.
    unsafe {
        command.pre_exec(hook);
    }
}

/// Frames without a packet header in front, with QEMU's offload header.
#[expect(
    clippy::cast_possible_truncation,
    reason = "0x5002 fits; the constants are wider than the field"
)]
const TAP_FLAGS: libc::c_short =
    (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;

/// Attaches to the TAP device `name`, or makes it if there is none, as
/// Firecracker does; one that was made here goes away when it is closed.
///
/// # Errors
/// The name is too long, the device is in use or of another kind, or the
/// process may not.
pub(crate) fn open_tap(name: &str) -> io::Result<OwnedFd> {
    // SAFETY: all of ifreq is valid as zeroes.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "interface names have 1 to 15 characters",
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = TAP_FLAGS;
    let tun = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: the descriptor is open and TUNSETIFF reads and writes one ifreq.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(tun.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_name_must_fit() {
        for name in ["", "a-name-of-16-chr", "a\0b"] {
            let error = open_tap(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
