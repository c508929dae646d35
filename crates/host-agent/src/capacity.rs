//! What the host has: CPUs, memory, free disk, architecture.

use std::path::Path;

use fuse_wire_host::Capacity;
use thiserror::Error;

use crate::disk::{SpaceError, space};

/// A fact of the host that cannot be read.
#[derive(Debug, Error)]
pub enum CapacityError {
    /// The free space.
    #[error(transparent)]
    Space(SpaceError),
    /// The memory.
    #[error("cannot read MemTotal from /proc/meminfo")]
    Memory,
    /// The CPUs.
    #[error("cannot count the CPUs")]
    Cpus,
}

/// Reads the host's capacity; disks live in the file system of `disks`.
///
/// # Errors
/// A fact cannot be read.
pub fn read(disks: &Path) -> Result<Capacity, CapacityError> {
    let free = space::free_bytes(disks).map_err(CapacityError::Space)?;
    Ok(Capacity {
        cpus: cpus().ok_or(CapacityError::Cpus)?,
        ram_mb: memory_mib().ok_or(CapacityError::Memory)?,
        storage_gb: free >> 30,
        arch: arch(),
        ..Capacity::default()
    })
}

/// CPUs of the host, not those that the agent itself is confined to.
fn cpus() -> Option<u32> {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok()??;
    u32::try_from(online).ok()
}

fn memory_mib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

fn arch() -> String {
    match rustix::system::uname().machine().to_string_lossy().as_ref() {
        "x86_64" => "amd64".to_owned(),
        "aarch64" => "arm64".to_owned(),
        other => other.to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_something() {
        let capacity = read(Path::new("/")).unwrap();
        assert!(capacity.cpus > 0 && capacity.ram_mb > 0, "{capacity:?}");
        assert!(!capacity.arch.contains('_'), "{capacity:?}");
    }
}
