//! What can be asked of the emulator, and which of it when.
//!
//! Every request of the API becomes one [`Action`]. A VM is first configured and
//! then runs; [`Action::before_boot`] and [`Action::after_boot`] sort the actions
//! into those that each phase has. Both name every action, so a new one does not
//! compile until its place in both phases is decided.
//!
//! ```text
//! configuring --InstanceStart | snapshot/load--> running (Running <-> Paused) --> process ends
//! ```
//!
//! Made by [`crate::api`], carried out by [`crate::controller`].
#![deny(
    clippy::wildcard_enum_match_arm,
    reason = "a new action needs a place in both phases"
)]

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::config::{
    BootSource, CreateSnapshot, Drive, DriveUpdate, Entropy, LoadSnapshot, LoggerConfig,
    MachineConfig, MachineConfigUpdate, NetworkInterface, NetworkUpdate, Serial, Vsock,
};

/// One request of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    ConfigureBootSource(BootSource),
    ConfigureLogger(LoggerConfig),
    ConfigureMachine(MachineConfigUpdate),
    ConfigureSerial(Serial),
    CreateSnapshot(CreateSnapshot),
    FlushMetrics,
    InsertDrive(Box<Drive>),
    InsertNetwork(Box<NetworkInterface>),
    LoadSnapshot(Box<LoadSnapshot>),
    Pause,
    Query(Query),
    Resume,
    SendCtrlAltDel,
    SetEntropy(Entropy),
    SetVsock(Vsock),
    Start,
    UpdateDrive(DriveUpdate),
    UpdateNetwork(NetworkUpdate),
}

/// Questions, which are answered in every phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    FullConfig,
    InstanceInfo,
    MachineConfig,
    Version,
}

/// What can be done while the VM is being configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BeforeBoot {
    Configure(Configure),
    ConfigureLogger(LoggerConfig),
    LoadSnapshot(Box<LoadSnapshot>),
    Query(Query),
    Start,
}

/// A part of the VM. A snapshot can be loaded only if none was touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Configure {
    BootSource(BootSource),
    Drive(Box<Drive>),
    Entropy(Entropy),
    Machine(MachineConfigUpdate),
    Network(Box<NetworkInterface>),
    Serial(Serial),
    Vsock(Vsock),
}

/// What can be done with a VM that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AfterBoot {
    CreateSnapshot(CreateSnapshot),
    FlushMetrics,
    Pause,
    Query(Query),
    Resume,
    SendCtrlAltDel,
    UpdateDrive(DriveUpdate),
    UpdateNetwork(NetworkUpdate),
}

/// An action at the wrong time.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum PhaseError {
    #[error("The requested operation is not supported after starting the microVM.")]
    AfterBoot,
    #[error("The requested operation is not supported before starting the microVM.")]
    BeforeBoot,
}

/// What an action that succeeded has to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Answer {
    FullConfig(Value),
    InstanceInfo(InstanceInfo),
    MachineConfig(MachineConfig),
    Nothing,
    Version { firecracker_version: String },
}

/// The answer to `GET /`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct InstanceInfo {
    pub(crate) id: String,
    pub(crate) state: InstanceState,
    pub(crate) vmm_version: String,
    pub(crate) app_name: &'static str,
}

/// State of the VM as the API names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum InstanceState {
    #[serde(rename = "Not started")]
    NotStarted,
    Running,
    Paused,
}

impl Action {
    /// This action as one of the configuring phase.
    ///
    /// # Errors
    /// It needs a started VM.
    pub(crate) fn before_boot(self) -> Result<BeforeBoot, PhaseError> {
        let configure = |part| Ok(BeforeBoot::Configure(part));
        match self {
            Self::ConfigureBootSource(source) => configure(Configure::BootSource(source)),
            Self::ConfigureMachine(update) => configure(Configure::Machine(update)),
            Self::ConfigureSerial(serial) => configure(Configure::Serial(serial)),
            Self::InsertDrive(drive) => configure(Configure::Drive(drive)),
            Self::InsertNetwork(interface) => configure(Configure::Network(interface)),
            Self::SetEntropy(entropy) => configure(Configure::Entropy(entropy)),
            Self::SetVsock(vsock) => configure(Configure::Vsock(vsock)),
            Self::ConfigureLogger(config) => Ok(BeforeBoot::ConfigureLogger(config)),
            Self::LoadSnapshot(load) => Ok(BeforeBoot::LoadSnapshot(load)),
            Self::Query(query) => Ok(BeforeBoot::Query(query)),
            Self::Start => Ok(BeforeBoot::Start),
            Self::CreateSnapshot(_)
            | Self::FlushMetrics
            | Self::Pause
            | Self::Resume
            | Self::SendCtrlAltDel
            | Self::UpdateDrive(_)
            | Self::UpdateNetwork(_) => Err(PhaseError::BeforeBoot),
        }
    }

    /// This action as one of the running phase.
    ///
    /// # Errors
    /// It belongs to the configuring phase.
    pub(crate) fn after_boot(self) -> Result<AfterBoot, PhaseError> {
        match self {
            Self::CreateSnapshot(create) => Ok(AfterBoot::CreateSnapshot(create)),
            Self::FlushMetrics => Ok(AfterBoot::FlushMetrics),
            Self::Pause => Ok(AfterBoot::Pause),
            Self::Query(query) => Ok(AfterBoot::Query(query)),
            Self::Resume => Ok(AfterBoot::Resume),
            Self::SendCtrlAltDel => Ok(AfterBoot::SendCtrlAltDel),
            Self::UpdateDrive(update) => Ok(AfterBoot::UpdateDrive(update)),
            Self::UpdateNetwork(update) => Ok(AfterBoot::UpdateNetwork(update)),
            Self::ConfigureBootSource(_)
            | Self::ConfigureLogger(_)
            | Self::ConfigureMachine(_)
            | Self::ConfigureSerial(_)
            | Self::InsertDrive(_)
            | Self::InsertNetwork(_)
            | Self::LoadSnapshot(_)
            | Self::SetEntropy(_)
            | Self::SetVsock(_)
            | Self::Start => Err(PhaseError::AfterBoot),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// (action, allowed before boot, allowed after boot)
    fn table() -> Vec<(Action, bool, bool)> {
        let drive = json!({"drive_id": "d", "is_root_device": false});
        let network = json!({"iface_id": "e", "host_dev_name": "t"});
        let snapshot = json!({"snapshot_path": "s", "mem_file_path": "m"});
        let vsock = json!({"guest_cid": 3, "uds_path": "u"});
        let load = LoadSnapshot {
            snapshot_path: "s".into(),
            mem_backend: serde_json::from_value(json!({
                "backend_path": "m", "backend_type": "File",
            }))
            .unwrap(),
            track_dirty_pages: false,
            resume_vm: false,
            network_overrides: Vec::new(),
            vsock_override: None,
        };
        let drive_update = DriveUpdate {
            drive_id: "d".into(),
            path_on_host: None,
            rate_limiter: None,
        };
        let network_update = NetworkUpdate {
            iface_id: "e".into(),
            rx_rate_limiter: None,
            tx_rate_limiter: None,
        };
        vec![
            (
                Action::ConfigureBootSource(BootSource::default()),
                true,
                false,
            ),
            (
                Action::ConfigureLogger(LoggerConfig::default()),
                true,
                false,
            ),
            (
                Action::ConfigureMachine(MachineConfigUpdate::default()),
                true,
                false,
            ),
            (Action::ConfigureSerial(Serial::default()), true, false),
            (
                Action::InsertDrive(serde_json::from_value(drive).unwrap()),
                true,
                false,
            ),
            (
                Action::InsertNetwork(serde_json::from_value(network).unwrap()),
                true,
                false,
            ),
            (Action::LoadSnapshot(Box::new(load)), true, false),
            (Action::SetEntropy(Entropy::default()), true, false),
            (
                Action::SetVsock(serde_json::from_value(vsock).unwrap()),
                true,
                false,
            ),
            (Action::Start, true, false),
            (Action::Query(Query::FullConfig), true, true),
            (Action::Query(Query::InstanceInfo), true, true),
            (Action::Query(Query::MachineConfig), true, true),
            (Action::Query(Query::Version), true, true),
            (
                Action::CreateSnapshot(serde_json::from_value(snapshot).unwrap()),
                false,
                true,
            ),
            (Action::FlushMetrics, false, true),
            (Action::Pause, false, true),
            (Action::Resume, false, true),
            (Action::SendCtrlAltDel, false, true),
            (Action::UpdateDrive(drive_update), false, true),
            (Action::UpdateNetwork(network_update), false, true),
        ]
    }

    #[test]
    fn every_action_has_its_phases() {
        for (action, before, after) in table() {
            let early = action.clone().before_boot();
            let late = action.clone().after_boot();
            assert_eq!(early.is_ok(), before, "{action:?} before boot");
            assert_eq!(late.is_ok(), after, "{action:?} after boot");
            assert!(before || early == Err(PhaseError::BeforeBoot));
            assert!(after || late == Err(PhaseError::AfterBoot));
        }
    }

    #[test]
    fn answers_have_the_shape_of_the_api() {
        let info = Answer::InstanceInfo(InstanceInfo {
            id: "vm".into(),
            state: InstanceState::NotStarted,
            vmm_version: "1".into(),
            app_name: "Firecracker",
        });
        assert_eq!(
            serde_json::to_value(info).unwrap(),
            json!({"id": "vm", "state": "Not started", "vmm_version": "1", "app_name": "Firecracker"})
        );
    }
}
