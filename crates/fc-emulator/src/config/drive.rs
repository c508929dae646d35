//! Block devices.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{RateLimiter, RateLimiterError};

/// Body of `PUT /drives/{drive_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Drive {
    pub(crate) drive_id: String,
    /// Partition that holds the root file system; only looked at for the root device.
    pub(crate) partuuid: Option<String>,
    /// The root device is the guest's first disk and is named to its kernel.
    pub(crate) is_root_device: bool,
    #[serde(default)]
    pub(crate) cache_type: CacheType,
    pub(crate) is_read_only: Option<bool>,
    pub(crate) path_on_host: Option<PathBuf>,
    pub(crate) rate_limiter: Option<RateLimiter>,
    pub(crate) io_engine: Option<IoEngine>,
    /// Backend of a vhost-user device, which the emulator does not have.
    pub(crate) socket: Option<PathBuf>,
}

/// Whether a flush of the guest reaches the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum CacheType {
    /// Flushes are answered and not carried out; what was written is safe from
    /// the guest's and the emulator's death, not from the host's.
    #[default]
    Unsafe,
    /// Flushes are carried out.
    Writeback,
}

/// How the host file is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum IoEngine {
    /// Blocking calls on worker threads.
    #[default]
    Sync,
    /// `io_uring`.
    Async,
}

/// Body of `PATCH /drives/{drive_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DriveUpdate {
    pub(crate) drive_id: String,
    pub(crate) path_on_host: Option<PathBuf>,
    pub(crate) rate_limiter: Option<RateLimiter>,
}

/// A drive that cannot be had.
#[derive(Debug, Error)]
pub(crate) enum DriveError {
    #[error("A root block device already exists!")]
    SecondRoot,
    #[error("vhost-user drives are not available in fc-emulator; give path_on_host, not socket")]
    VhostUser,
    #[error("Drive {id} needs both path_on_host and is_read_only")]
    Incomplete { id: String },
    #[error("Unable to open the backing file {}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("Invalid rate limiter of drive {id}")]
    RateLimiter {
        id: String,
        #[source]
        source: RateLimiterError,
    },
    #[error("Invalid block device ID: {id}")]
    Unknown { id: String },
    #[error(
        "Changing the backing file of a running VM is not available in fc-emulator (drive {id})"
    )]
    PathUpdate { id: String },
}

impl Drive {
    /// Checks what can be told from the request alone.
    ///
    /// # Errors
    /// The drive is of a kind that the emulator lacks, or incomplete.
    pub(crate) fn check(&self) -> Result<(), DriveError> {
        if self.socket.is_some() {
            return Err(DriveError::VhostUser);
        }
        if self.path_on_host.is_none() || self.is_read_only.is_none() {
            let id = self.drive_id.clone();
            return Err(DriveError::Incomplete { id });
        }
        self.throttle().map(drop)
    }

    /// A drive that passed [`Self::check`] always says so itself.
    pub(crate) fn read_only(&self) -> bool {
        self.is_read_only.unwrap_or(false)
    }

    /// Limits of this drive.
    ///
    /// # Errors
    /// They cannot be expressed in QEMU.
    pub(crate) fn throttle(&self) -> Result<super::Throttle, DriveError> {
        self.rate_limiter
            .unwrap_or_default()
            .throttle()
            .map_err(|source| DriveError::RateLimiter {
                id: self.drive_id.clone(),
                source,
            })
    }
}
