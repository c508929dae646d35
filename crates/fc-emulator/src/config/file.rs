//! The file of `--config-file`: a whole VM in one JSON object.

use serde::Deserialize;
use serde_json::Value;

use super::{
    BootSource, Drive, Entropy, LoggerConfig, MachineConfig, NetworkInterface, Serial, Vsock,
};

/// Configuration file. The sections that the emulator lacks are named here so
/// that they are refused by name and not as typing errors.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ConfigFile {
    pub(crate) boot_source: BootSource,
    pub(crate) drives: Vec<Drive>,
    #[serde(default)]
    pub(crate) network_interfaces: Vec<NetworkInterface>,
    pub(crate) machine_config: Option<MachineConfig>,
    pub(crate) vsock: Option<Vsock>,
    pub(crate) entropy: Option<Entropy>,
    pub(crate) logger: Option<LoggerConfig>,
    pub(crate) serial: Option<Serial>,
    balloon: Option<Value>,
    cpu_config: Option<Value>,
    memory_hotplug: Option<Value>,
    metrics: Option<Value>,
    mmds_config: Option<Value>,
    #[serde(default)]
    pmem: Vec<Value>,
}

impl ConfigFile {
    /// The first section that the emulator has no device for.
    pub(crate) fn unsupported(&self) -> Option<&'static str> {
        let sections = [
            ("balloon", self.balloon.is_some()),
            ("cpu-config", self.cpu_config.is_some()),
            ("memory-hotplug", self.memory_hotplug.is_some()),
            ("metrics", self.metrics.is_some()),
            ("mmds-config", self.mmds_config.is_some()),
            ("pmem", !self.pmem.is_empty()),
        ];
        let present = sections.into_iter().find(|(_, present)| *present);
        present.map(|(name, _)| name)
    }
}
