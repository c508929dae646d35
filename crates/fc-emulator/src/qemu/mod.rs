//! QEMU as the engine: its command line and its process. What does not depend on
//! Firecracker's configuration is the crate `fuse-qemu`.

mod cmdline;
mod process;
mod throttle;

#[cfg(test)]
mod cmdline_tests;

pub(crate) use cmdline::{Channels, Start, arguments, drive_backend};
pub(crate) use process::{Exit, Qemu, QemuError, channel};
pub(crate) use throttle::BlockSetIoThrottle;
