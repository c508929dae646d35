//! The vsock device.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Body of `PUT /vsock`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Vsock {
    /// Deprecated; one device is all there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) vsock_id: Option<String>,
    /// At least 3. The guest of the emulator does not see it: its end of the
    /// channel is a serial port.
    pub(crate) guest_cid: u32,
    /// Unix socket for streams to the guest; streams from it go to `<uds_path>_<port>`.
    pub(crate) uds_path: PathBuf,
}

/// A vsock device that cannot be had.
#[derive(Debug, Error)]
pub(crate) enum VsockError {
    #[error("guest_cid must be 3 or greater, not {cid}")]
    ReservedCid { cid: u32 },
    #[error("Cannot bind the Unix socket {}", path.display())]
    Bind {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Context ids below belong to the hypervisor and the hosts.
const FIRST_GUEST_CID: u32 = 3;

impl Vsock {
    /// Checks what can be told from the request alone.
    ///
    /// # Errors
    /// The context id is a reserved one.
    pub(crate) fn check(&self) -> Result<(), VsockError> {
        if self.guest_cid < FIRST_GUEST_CID {
            let cid = self.guest_cid;
            return Err(VsockError::ReservedCid { cid });
        }
        Ok(())
    }
}
