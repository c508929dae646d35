//! Making a persistent TAP device.
//!
//! Netlink cannot do this: the kernel's tun driver refuses `RTM_NEWLINK`. It takes the ioctl on
//! `/dev/net/tun`.
#![expect(unsafe_code, reason = "ioctl takes a raw pointer to a C structure")]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd as _;

/// Creates the device `name` in TAP mode and lets it outlive this process; `user`, if given, may open
/// it without privileges.
///
/// # Errors
/// The name is longer than 15 bytes, the caller lacks `CAP_NET_ADMIN`, or a device that is not a
/// TAP has that name.
pub(crate) fn create_tap(name: &str, user: Option<u32>) -> io::Result<()> {
    let mut request = interface_request(name)?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI;
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(flags).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let tun = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives on this frame for the whole call.
    let made = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    if let Some(user) = user {
        // SAFETY: TUNSETOWNER takes an integer by value and no pointer.
        let owned = unsafe {
            libc::ioctl(
                tun.as_raw_fd(),
                libc::TUNSETOWNER,
                libc::c_ulong::from(user),
            )
        };
        if owned < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: TUNSETPERSIST takes an integer by value and no pointer.
    let kept = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETPERSIST, 1 as libc::c_ulong) };
    if kept < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is a plain C structure for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    if name.is_empty() || name.len() > room {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "bad interface name",
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}
