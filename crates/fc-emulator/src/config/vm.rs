//! The whole configuration of one VM.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

use super::{
    BootSource, Drive, DriveError, Entropy, EntropyError, LoggerConfig, MachineConfig,
    MachineError, NetworkError, NetworkInterface, Vsock, VsockError,
};

/// All that makes up a VM; what a snapshot's state file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VmConfig {
    pub(crate) boot_source: Option<BootSource>,
    pub(crate) machine: MachineConfig,
    /// The root device, if there is one, stands first: it is the guest's first disk.
    pub(crate) drives: Vec<Drive>,
    pub(crate) networks: Vec<NetworkInterface>,
    pub(crate) vsock: Option<Vsock>,
    pub(crate) entropy: Option<Entropy>,
    pub(crate) serial: Serial,
}

/// Body of `PUT /serial`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Serial {
    /// File or FIFO that gets the console's output; standard output if absent.
    pub(crate) serial_out_path: Option<PathBuf>,
}

/// A part of the configuration that was refused.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("Boot source error: The kernel file cannot be opened ({})", path.display())]
    Kernel {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "Boot source error: The initrd file cannot be opened due to invalid path or \
         invalid permissions ({})", path.display()
    )]
    Initrd {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("Drive config error")]
    Drive(#[from] DriveError),
    #[error("Network config error")]
    Network(#[from] NetworkError),
    #[error("Vsock config error")]
    Vsock(#[from] VsockError),
    #[error("Entropy device error")]
    Entropy(#[from] EntropyError),
    #[error("Machine config error")]
    Machine(#[from] MachineError),
}

impl VmConfig {
    /// Adds a drive, or replaces the one of the same id.
    ///
    /// # Errors
    /// There is another root device already.
    pub(crate) fn insert_drive(&mut self, drive: Drive) -> Result<(), DriveError> {
        let old = self
            .drives
            .iter()
            .position(|d| d.drive_id == drive.drive_id);
        let root = self.drives.iter().position(|d| d.is_root_device);
        if drive.is_root_device && root.is_some() && root != old {
            return Err(DriveError::SecondRoot);
        }
        match (old, drive.is_root_device) {
            (Some(at), true) => {
                self.drives.remove(at);
                self.drives.insert(0, drive);
            }
            (Some(at), false) => self.drives[at] = drive,
            (None, true) => self.drives.insert(0, drive),
            (None, false) => self.drives.push(drive),
        }
        Ok(())
    }

    /// Checks that `interface` clashes with none of the others.
    ///
    /// # Errors
    /// Its TAP or MAC is another interface's.
    pub(crate) fn check_network(&self, interface: &NetworkInterface) -> Result<(), NetworkError> {
        let others = self
            .networks
            .iter()
            .filter(|other| other.iface_id != interface.iface_id);
        for other in others {
            if other.host_dev_name == interface.host_dev_name {
                let name = interface.host_dev_name.clone();
                return Err(NetworkError::DeviceInUse { name });
            }
            if let Some(mac) = interface
                .guest_mac
                .filter(|mac| other.guest_mac == Some(*mac))
            {
                return Err(NetworkError::MacInUse { mac });
            }
        }
        Ok(())
    }

    /// Adds an interface that passed [`Self::check_network`], or replaces the
    /// one of the same id.
    pub(crate) fn insert_network(&mut self, interface: NetworkInterface) {
        let same = |other: &&mut NetworkInterface| other.iface_id == interface.iface_id;
        match self.networks.iter_mut().find(same) {
            Some(old) => *old = interface,
            None => self.networks.push(interface),
        }
    }

    /// The drive that is marked as the root device.
    pub(crate) fn root_drive(&self) -> Option<&Drive> {
        self.drives.first().filter(|drive| drive.is_root_device)
    }

    /// The answer to `GET /vm/config`.
    pub(crate) fn view(&self, logger: Option<&LoggerConfig>) -> Value {
        let boot_source = self.boot_source.clone().unwrap_or_default();
        json!({
            "balloon": null,
            "drives": self.drives,
            "boot-source": boot_source,
            "cpu-config": null,
            "logger": logger,
            "machine-config": self.machine,
            "metrics": null,
            "mmds-config": null,
            "network-interfaces": self.networks,
            "vsock": self.vsock,
            "entropy": self.entropy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(id: &str, is_root_device: bool) -> Drive {
        serde_json::from_value(json!({
            "drive_id": id, "path_on_host": "/d", "is_root_device": is_root_device,
            "is_read_only": false,
        }))
        .unwrap()
    }

    fn ids(config: &VmConfig) -> Vec<&str> {
        config
            .drives
            .iter()
            .map(|drive| drive.drive_id.as_str())
            .collect()
    }

    #[test]
    fn the_root_device_stands_first_whenever_it_comes() {
        let mut config = VmConfig::default();
        for new in [drive("a", false), drive("b", false), drive("root", true)] {
            config.insert_drive(new).unwrap();
        }
        assert_eq!(ids(&config), ["root", "a", "b"]);
        assert!(matches!(
            config.insert_drive(drive("b", true)),
            Err(DriveError::SecondRoot)
        ));
        config.insert_drive(drive("root", false)).unwrap();
        assert!(config.root_drive().is_none());
        config.insert_drive(drive("b", true)).unwrap();
        assert_eq!(ids(&config), ["b", "root", "a"]);
    }

    #[test]
    fn taps_and_macs_belong_to_one_interface() {
        let interface = |id: &str, tap: &str, mac: &str| -> NetworkInterface {
            serde_json::from_value(json!({"iface_id": id, "host_dev_name": tap, "guest_mac": mac}))
                .unwrap()
        };
        let mut config = VmConfig::default();
        let first = interface("a", "tap0", "06:00:00:00:00:01");
        config.check_network(&first).unwrap();
        config.insert_network(first.clone());
        config.check_network(&first).unwrap();
        let same_tap = interface("b", "tap0", "06:00:00:00:00:02");
        assert!(matches!(
            config.check_network(&same_tap),
            Err(NetworkError::DeviceInUse { .. })
        ));
        let same_mac = interface("b", "tap1", "06:00:00:00:00:01");
        assert!(matches!(
            config.check_network(&same_mac),
            Err(NetworkError::MacInUse { .. })
        ));
        config.insert_network(interface("a", "tap1", "06:00:00:00:00:03"));
        assert_eq!(config.networks.len(), 1);
    }
}
