//! Refusing work before the file system is full.

use std::path::Path;

use thiserror::Error;

/// Not enough room, or no way to tell.
#[derive(Debug, Error)]
pub enum SpaceError {
    /// Below the floor.
    #[error(
        "the host is low on disk space: {free_mib} MiB free where VM disks live, {floor_mib} MiB \
         are kept; delete VMs or files, or lower FUSE_MIN_FREE_MB"
    )]
    Low {
        /// What is free.
        free_mib: u64,
        /// What must stay free.
        floor_mib: u64,
    },
    /// What is to be written does not fit.
    #[error(
        "the host lacks {missing_mib} MiB of disk space where {dir} lies: {needed_mib} MiB are needed \
         beside the {floor_mib} MiB that are kept (FUSE_MIN_FREE_MB)"
    )]
    Short {
        /// Where.
        dir: String,
        /// What is to be written.
        needed_mib: u64,
        /// What must stay free.
        floor_mib: u64,
        /// What there is too little.
        missing_mib: u64,
    },
    /// The file system does not answer.
    #[error("cannot read the free space of {dir}")]
    Unknown {
        /// Where.
        dir: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
}

/// Bytes that an unprivileged writer could still use in the file system of `dir`.
///
/// # Errors
/// The file system does not answer.
pub fn free_bytes(dir: &Path) -> Result<u64, SpaceError> {
    let stat = rustix::fs::statvfs(dir).map_err(|errno| SpaceError::Unknown {
        dir: dir.display().to_string(),
        source: errno.into(),
    })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Checks that at least `floor_mib` are free.
///
/// # Errors
/// Less is free, or the file system does not answer.
pub fn ensure_free(dir: &Path, floor_mib: u64) -> Result<(), SpaceError> {
    let free_mib = free_bytes(dir)? / (1024 * 1024);
    if free_mib < floor_mib {
        return Err(SpaceError::Low {
            free_mib,
            floor_mib,
        });
    }
    Ok(())
}

/// Checks that `needed` bytes fit and `floor_mib` stay free.
///
/// # Errors
/// They do not, or the file system does not answer.
pub fn ensure_room(dir: &Path, needed: u64, floor_mib: u64) -> Result<(), SpaceError> {
    let needed_mib = needed.div_ceil(1024 * 1024);
    let free_mib = free_bytes(dir)? / (1024 * 1024);
    let missing_mib = (needed_mib.saturating_add(floor_mib)).saturating_sub(free_mib);
    if missing_mib == 0 {
        return Ok(());
    }
    Err(SpaceError::Short {
        dir: dir.display().to_string(),
        needed_mib,
        floor_mib,
        missing_mib,
    })
}

/// Bytes that a file takes in its file system, 0 if it is not there.
#[must_use]
pub fn stored_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).map_or(0, |meta| meta.blocks() * 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_decides() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ensure_free(dir.path(), 0).is_ok());
        let error = ensure_free(dir.path(), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("FUSE_MIN_FREE_MB"), "{error}");
        let free = free_bytes(dir.path()).unwrap();
        let error = ensure_room(dir.path(), free + (8 << 20), 0).unwrap_err();
        let SpaceError::Short { missing_mib, .. } = error else {
            panic!("{error:?}")
        };
        // Others use the file system too.
        assert!(missing_mib.abs_diff(8) < 500, "{missing_mib}");
    }
}
