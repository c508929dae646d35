//! What every long-running program of Fuse does alike: log lines, signals, the service manager, the
//! certificate of its listener.

pub mod log;
pub mod signals;
pub mod systemd;
pub mod tls;
