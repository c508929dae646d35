//! What a VM is configured with: the bodies of the API's PUT and PATCH requests.
//!
//! Field names, defaults and strictness (unknown fields are refused) are those
//! of Firecracker's published API. The types here are plain data with their own
//! checks; whatever needs the host (files, TAPs, sockets) is checked by
//! [`crate::controller`] when it takes a configuration in.

mod boot_source;
mod drive;
mod entropy;
mod file;
mod logger;
mod machine;
mod network;
mod rate_limiter;
mod snapshot;
mod vm;
mod vsock;

pub(crate) use boot_source::BootSource;
pub(crate) use drive::{CacheType, Drive, DriveError, DriveUpdate, IoEngine};
pub(crate) use entropy::{Entropy, EntropyError};
pub(crate) use file::ConfigFile;
pub(crate) use logger::{LogLevel, LoggerConfig};
pub(crate) use machine::{HugePages, MachineConfig, MachineConfigUpdate, MachineError};
pub(crate) use network::{NetworkError, NetworkInterface, NetworkUpdate};
pub(crate) use rate_limiter::{RateLimiter, RateLimiterError, Throttle, TokenBucket};
pub(crate) use snapshot::{
    CreateSnapshot, LoadSnapshot, MemoryBackend, MemoryBackendType, NetworkOverride, SnapshotType,
    VsockOverride,
};
pub(crate) use vm::{ConfigError, Serial, VmConfig};
pub(crate) use vsock::{Vsock, VsockError};
