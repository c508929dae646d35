//! QEMU, for the programs that run it: its command line and its monitor.
//!
//! [`CommandLine`] is a machine put together from parts, pure, so that whole command lines are
//! compared in tests. [`Qmp`] speaks to the monitor of a running one. Processes are the callers'
//! business: one of them ties QEMU to its own life, the other lets it outlive the agent.

mod command_line;
pub mod commands;
mod qmp;

pub use command_line::{
    Accelerator, CommandLine, Console, Disk, Engine, Format, Memory, Port, Tap,
};
pub use qmp::{Observed, Qmp, QmpError, Shutdown};
