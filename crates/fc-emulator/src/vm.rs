//! A VM that was started: the machine in QEMU and what is connected to it.

mod load;
mod snapshot;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use fuse_qemu::QmpError;
use fuse_qemu::commands::{Cont, MigrateSetCapabilities, SendKey, Stop};
use thiserror::Error;
use tokio::net::UnixStream;

use crate::action::InstanceState;
use crate::config::{DriveError, DriveUpdate, NetworkError, NetworkUpdate, VmConfig};
use crate::host::HostParts;
use crate::qemu::{
    BlockSetIoThrottle, Channels, Exit, Qemu, QemuError, Start, arguments, channel, drive_backend,
};
use crate::vsock::Bridge;

pub(crate) use load::LoadError;
pub(crate) use snapshot::CreateSnapshotError;

/// A started VM. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Vm {
    qemu: Qemu,
    config: VmConfig,
    state: RunState,
    /// Carries the vsock's streams.
    bridge: Option<Bridge>,
}

/// Whether the vCPUs run.
#[derive(Debug)]
enum RunState {
    Running,
    Paused {
        /// Memory file of the snapshot that was taken since the guest last ran.
        memory: Option<File>,
    },
}

/// A VM that did not start.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error("Cannot start microvm without kernel configuration.")]
    NoKernel,
    #[error("Cannot hand a TAP device over")]
    Tap(#[source] io::Error),
    #[error("Cannot start QEMU")]
    Qemu(#[from] QemuError),
    #[error("Cannot set the machine up")]
    Monitor(#[from] QmpError),
    #[error("Cannot set the machine up")]
    Drive(#[from] DriveError),
}

/// A change that a running VM did not take.
#[derive(Debug, Error)]
pub(crate) enum UpdateError {
    #[error("Drive config error")]
    Drive(#[from] DriveError),
    #[error("Drive config error: Cannot set the limits")]
    Throttle(#[source] QmpError),
    #[error("Network config error")]
    Network(#[from] NetworkError),
}

impl Vm {
    /// Boots the VM of `config`. What it needs of the host is taken out of
    /// `parts` once it runs, and left there if it does not.
    ///
    /// # Errors
    /// There is no kernel, or QEMU does not come up.
    pub(crate) async fn boot(config: &VmConfig, parts: &mut HostParts) -> Result<Self, StartError> {
        let source = config.boot_source.as_ref().ok_or(StartError::NoKernel)?;
        let (mut qemu, vsock) = launch(config, parts, Start::Boot(source)).await?;
        qemu.qmp.execute(Cont {}).await?;
        Ok(Self::assemble(
            qemu,
            config.clone(),
            RunState::Running,
            parts,
            vsock,
        ))
    }

    fn assemble(
        qemu: Qemu,
        config: VmConfig,
        state: RunState,
        parts: &mut HostParts,
        vsock: Option<UnixStream>,
    ) -> Self {
        let HostParts { listener, .. } = std::mem::take(parts);
        let bridge = listener
            .zip(vsock)
            .map(|(listener, port)| Bridge::start(listener, port));
        Self {
            qemu,
            config,
            state,
            bridge,
        }
    }

    pub(crate) fn config(&self) -> &VmConfig {
        &self.config
    }

    pub(crate) fn state(&self) -> InstanceState {
        match self.state {
            RunState::Running => InstanceState::Running,
            RunState::Paused { .. } => InstanceState::Paused,
        }
    }

    /// Halts the vCPUs; does nothing if they are halted.
    ///
    /// # Errors
    /// QEMU is gone.
    pub(crate) async fn pause(&mut self) -> Result<(), QmpError> {
        if let RunState::Running = self.state {
            self.qemu.qmp.execute(Stop {}).await?;
            self.state = RunState::Paused { memory: None };
        }
        Ok(())
    }

    /// Lets the vCPUs run; does nothing if they do.
    ///
    /// # Errors
    /// QEMU is gone, or cannot open the disks again.
    pub(crate) async fn resume(&mut self) -> Result<(), QmpError> {
        if let RunState::Paused { .. } = self.state {
            self.qemu.qmp.execute(Cont {}).await?;
            self.state = RunState::Running;
        }
        Ok(())
    }

    /// Presses the three keys.
    ///
    /// # Errors
    /// QEMU is gone.
    pub(crate) async fn send_ctrl_alt_del(&mut self) -> Result<(), QmpError> {
        self.qemu.qmp.execute(SendKey::ctrl_alt_del()).await?;
        Ok(())
    }

    /// Changes the limits of a drive.
    ///
    /// # Errors
    /// There is no such drive, or the change is not one of limits.
    pub(crate) async fn update_drive(&mut self, update: DriveUpdate) -> Result<(), UpdateError> {
        let id = update.drive_id;
        let drive = self
            .config
            .drives
            .iter_mut()
            .find(|drive| drive.drive_id == id);
        let Some(drive) = drive else {
            return Err(DriveError::Unknown { id }.into());
        };
        if update.path_on_host.is_some() {
            return Err(DriveError::PathUpdate { id }.into());
        }
        let Some(limiter) = update.rate_limiter else {
            return Ok(());
        };
        let mut changed = drive.clone();
        changed.rate_limiter = Some(drive.rate_limiter.unwrap_or_default().updated(limiter));
        let command = BlockSetIoThrottle::new(drive_backend(&id), changed.throttle()?);
        self.qemu
            .qmp
            .execute(command)
            .await
            .map_err(UpdateError::Throttle)?;
        *drive = changed;
        Ok(())
    }

    /// Changes the limits of an interface, of which only "none" is available.
    ///
    /// # Errors
    /// There is no such interface, or a limit is asked for.
    pub(crate) fn update_network(&self, update: &NetworkUpdate) -> Result<(), UpdateError> {
        let id = &update.iface_id;
        if !self
            .config
            .networks
            .iter()
            .any(|interface| interface.iface_id == *id)
        {
            return Err(NetworkError::Unknown { id: id.clone() }.into());
        }
        Ok(update.check()?)
    }

    /// Waits for the VM's end. Streams through its vsock end with it.
    ///
    /// # Cancel safety
    /// Safe: it can be asked again.
    pub(crate) async fn ended(&mut self) -> Exit {
        let exit = self.qemu.wait().await;
        self.bridge = None;
        exit
    }
}

/// Starts QEMU with the machine of `config`, halted; returns it with the host's
/// end of the vsock's serial port.
async fn launch(
    config: &VmConfig,
    parts: &HostParts,
    start: Start<'_>,
) -> Result<(Qemu, Option<UnixStream>), StartError> {
    let (monitor, qmp) = channel()?;
    let (vsock, port) = config
        .vsock
        .as_ref()
        .map(|_| channel())
        .transpose()?
        .unzip();
    let taps = parts.taps(config).map_err(StartError::Tap)?;
    let channels = Channels {
        qmp: qmp.as_raw_fd(),
        vsock: port.as_ref().map(AsRawFd::as_raw_fd),
        taps: taps.iter().map(AsRawFd::as_raw_fd).collect(),
    };
    let arguments = arguments(config, &channels, start);
    let inherited = taps.into_iter().chain([qmp]).chain(port).collect();
    let mut qemu = Qemu::start(arguments, monitor, inherited).await?;
    qemu.qmp.execute(MigrateSetCapabilities::events()).await?;
    for drive in &config.drives {
        let throttle = drive.throttle()?;
        if throttle != crate::config::Throttle::default() {
            let command = BlockSetIoThrottle::new(drive_backend(&drive.drive_id), throttle);
            qemu.qmp.execute(command).await?;
        }
    }
    Ok((qemu, vsock))
}
