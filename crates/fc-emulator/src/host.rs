//! What a VM holds of the host before it runs: TAPs and the vsock's socket.
//!
//! They are taken when they are configured, so that a TAP in use or a socket
//! path that exists is refused with the request that named it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::config::{BootSource, ConfigError, Drive, DriveError, NetworkError, VmConfig, Vsock};
use crate::sys;
use crate::vsock::Listener;

/// Resources of one VM.
#[derive(Debug, Default)]
pub(crate) struct HostParts {
    /// Open TAP of each interface, by interface id.
    taps: BTreeMap<String, OwnedFd>,
    pub(crate) listener: Option<Listener>,
}

impl HostParts {
    /// Takes everything that `config` names.
    ///
    /// # Errors
    /// Something is missing, in use or forbidden.
    pub(crate) fn take(config: &VmConfig) -> Result<Self, ConfigError> {
        let mut parts = Self::default();
        for drive in &config.drives {
            check_drive(drive)?;
        }
        for interface in &config.networks {
            parts.take_tap(&interface.iface_id, &interface.host_dev_name)?;
        }
        if let Some(vsock) = &config.vsock {
            parts.bind(vsock)?;
        }
        Ok(parts)
    }

    /// Attaches to the TAP `name` for interface `id`, in place of the one it had.
    ///
    /// # Errors
    /// The TAP cannot be had.
    pub(crate) fn take_tap(&mut self, id: &str, name: &str) -> Result<(), NetworkError> {
        self.taps.remove(id);
        let tap = sys::open_tap(name).map_err(|source| NetworkError::OpenTap {
            name: name.to_owned(),
            source,
        })?;
        self.taps.insert(id.to_owned(), tap);
        Ok(())
    }

    /// Binds the socket of `vsock`, in place of the one that was bound.
    ///
    /// # Errors
    /// The path cannot be bound.
    pub(crate) fn bind(&mut self, vsock: &Vsock) -> Result<(), ConfigError> {
        self.listener = None;
        self.listener = Some(Listener::bind(&vsock.uds_path)?);
        Ok(())
    }

    /// Copies of the TAPs, in the order of `config`'s interfaces.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(crate) fn taps(&self, config: &VmConfig) -> io::Result<Vec<OwnedFd>> {
        let ids = config.networks.iter().map(|interface| &interface.iface_id);
        ids.filter_map(|id| self.taps.get(id))
            .map(OwnedFd::try_clone)
            .collect()
    }
}

/// Checks that the drive's file can be opened as it will be.
///
/// # Errors
/// It cannot.
pub(crate) fn check_drive(drive: &Drive) -> Result<(), DriveError> {
    let Some(path) = &drive.path_on_host else {
        let id = drive.drive_id.clone();
        return Err(DriveError::Incomplete { id });
    };
    let opened = OpenOptions::new()
        .read(true)
        .write(!drive.read_only())
        .open(path);
    opened.map(drop).map_err(|source| DriveError::Open {
        path: path.clone(),
        source,
    })
}

/// Checks that kernel and initrd can be read.
///
/// # Errors
/// One of them cannot.
pub(crate) fn check_boot_source(source: &BootSource) -> Result<(), ConfigError> {
    let path = &source.kernel_image_path;
    readable(path).map_err(|source| ConfigError::Kernel {
        path: path.clone(),
        source,
    })?;
    let Some(path) = &source.initrd_path else {
        return Ok(());
    };
    readable(path).map_err(|source| ConfigError::Initrd {
        path: path.clone(),
        source,
    })
}

fn readable(path: &Path) -> io::Result<()> {
    File::open(path).map(drop)
}
