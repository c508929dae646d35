//! QEMU as the engine: its command line, its monitor and its process.

mod cmdline;
mod process;
mod qmp;
mod qmp_types;

#[cfg(test)]
mod cmdline_tests;

pub(crate) use cmdline::{Channels, Start, arguments, drive_backend};
pub(crate) use process::{Exit, Qemu, QemuError, channel};
pub(crate) use qmp::QmpError;
pub(crate) use qmp_types::{
    BlockSetIoThrottle, Cont, GetFd, Migrate, MigrateIncoming, MigrateSetCapabilities,
    MigrateSetParameters, QueryMigrate, SendKey, Stop,
};
