//! The socket at `uds_path`. It is there from the moment the device is
//! configured; who connects before the guest runs waits.

use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

use crate::config::VsockError;

/// A bound `uds_path`. Its file goes away with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Binds `path`.
    ///
    /// # Errors
    /// It cannot be bound, for instance because it exists.
    pub(crate) fn bind(path: &Path) -> Result<Self, VsockError> {
        let socket = UnixListener::bind(path).map_err(|source| VsockError::Bind {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            socket,
            path: path.to_owned(),
        })
    }

    pub(super) fn socket(&self) -> &UnixListener {
        &self.socket
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, "vsock socket was not removed");
        }
    }
}
