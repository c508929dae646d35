//! What every long-running program of Fuse does alike: log lines, signals, the service manager.

pub mod log;
pub mod signals;
pub mod systemd;
