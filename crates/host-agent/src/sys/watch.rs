//! Waiting for a descriptor to become readable.
#![expect(
    unsafe_code,
    reason = "tokio cannot know that a type keeps its descriptor"
)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `fd` for reading with the runtime. Must be called within a tokio runtime.
///
/// # Errors
/// The runtime cannot watch this kind of descriptor.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and names the same file as long as it lives, and the AsyncFd
    // owns it.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Into::into)
}
