//! The one task that owns the VM: it carries out actions in their order and
//! notices the VM's end.

use std::process::ExitCode;

use fuse_qemu::QmpError;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::action::{
    Action, AfterBoot, Answer, BeforeBoot, Configure, InstanceInfo, InstanceState, PhaseError,
    Query,
};
use crate::api::Request;
use crate::config::{ConfigError, ConfigFile, LoadSnapshot, LoggerConfig, VmConfig};
use crate::host::{self, HostParts};
use crate::logger::{Logger, LoggerError};
use crate::qemu::Exit;
use crate::vm::{CreateSnapshotError, LoadError, StartError, UpdateError, Vm};

/// An action that failed. The text of the variant and of all its causes is the
/// API's `fault_message`.
#[derive(Debug, Error)]
pub(crate) enum ActionError {
    #[error(transparent)]
    Phase(#[from] PhaseError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("Logger error")]
    Logger(#[from] LoggerError),
    #[error("Start microvm error")]
    Start(#[from] StartError),
    #[error("Load snapshot error")]
    Load(#[from] LoadError),
    #[error("Create snapshot error")]
    CreateSnapshot(#[from] CreateSnapshotError),
    #[error("Internal VMM error")]
    Vmm(#[from] QmpError),
    #[error(transparent)]
    Update(#[from] UpdateError),
}

/// Why the process ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The guest powered off or rebooted.
    Guest { reason: String },
    /// QEMU died, or a snapshot could not be loaded.
    Failed { what: String },
}

impl Ending {
    /// Success only for the guest's own end.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Guest { .. } => ExitCode::SUCCESS,
            Self::Failed { .. } => ExitCode::FAILURE,
        }
    }
}

/// Who this instance is.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) version: String,
}

/// Owner of the VM.
#[derive(Debug)]
pub(crate) struct Controller {
    identity: Identity,
    logger: Logger,
    /// What the logger was told through the API or the configuration file.
    logger_config: Option<LoggerConfig>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Configuring(Box<Configuring>),
    Started(Box<Vm>),
    /// A snapshot failed to load; the process is about to end.
    Spoilt {
        what: String,
    },
}

#[derive(Debug, Default)]
struct Configuring {
    config: VmConfig,
    parts: HostParts,
    /// A part of the VM was touched, even if in vain.
    touched: bool,
}

impl Controller {
    pub(crate) fn new(identity: Identity, logger: Logger) -> Self {
        Self {
            identity,
            logger,
            logger_config: None,
            phase: Phase::Configuring(Box::default()),
        }
    }

    /// Configures and boots the VM of a configuration file.
    ///
    /// # Errors
    /// A part of it is refused or the VM does not start.
    pub(crate) async fn boot_from(&mut self, file: ConfigFile) -> Result<(), ActionError> {
        if let Some(config) = file.logger {
            self.act(Action::ConfigureLogger(config)).await?;
        }
        self.act(Action::ConfigureBootSource(file.boot_source))
            .await?;
        if let Some(machine) = file.machine_config {
            self.act(Action::ConfigureMachine(machine.into())).await?;
        }
        for drive in file.drives {
            self.act(Action::InsertDrive(Box::new(drive))).await?;
        }
        for interface in file.network_interfaces {
            self.act(Action::InsertNetwork(Box::new(interface))).await?;
        }
        if let Some(vsock) = file.vsock {
            self.act(Action::SetVsock(vsock)).await?;
        }
        if let Some(entropy) = file.entropy {
            self.act(Action::SetEntropy(entropy)).await?;
        }
        if let Some(serial) = file.serial {
            self.act(Action::ConfigureSerial(serial)).await?;
        }
        self.act(Action::Start).await.map(drop)
    }

    /// Carries out what comes in until the VM has ended. `None` if nobody can
    /// ask any more and no VM runs.
    pub(crate) async fn run(&mut self, requests: &mut mpsc::Receiver<Request>) -> Option<Ending> {
        loop {
            let request = match &mut self.phase {
                Phase::Configuring(_) => requests.recv().await?,
                Phase::Started(vm) => tokio::select! {
                    exit = vm.ended() => return Some(exit.into()),
                    Some(request) = requests.recv() => request,
                },
                Phase::Spoilt { what } => {
                    let what = std::mem::take(what);
                    return Some(Ending::Failed { what });
                }
            };
            let outcome = Box::pin(self.act(request.action)).await;
            if request.reply.send(outcome).is_err() {
                tracing::debug!("the client left before its answer");
            }
        }
    }

    async fn act(&mut self, action: Action) -> Result<Answer, ActionError> {
        match self.phase {
            Phase::Configuring(_) => self.before_boot(action.before_boot()?).await,
            Phase::Started(_) => self.after_boot(action.after_boot()?).await,
            Phase::Spoilt { .. } => Err(PhaseError::AfterBoot.into()),
        }
    }

    async fn before_boot(&mut self, action: BeforeBoot) -> Result<Answer, ActionError> {
        let Phase::Configuring(configuring) = &mut self.phase else {
            return Err(PhaseError::AfterBoot.into());
        };
        match action {
            BeforeBoot::Configure(part) => configuring.configure(part)?,
            BeforeBoot::ConfigureLogger(config) => {
                self.logger.update(&config)?;
                self.logger_config = Some(config);
            }
            BeforeBoot::LoadSnapshot(request) => self.load(&request).await?,
            BeforeBoot::Query(query) => return Ok(self.answer(query)),
            BeforeBoot::Start => {
                let vm = Vm::boot(&configuring.config, &mut configuring.parts).await?;
                self.phase = Phase::Started(Box::new(vm));
            }
        }
        Ok(Answer::Nothing)
    }

    async fn load(&mut self, request: &LoadSnapshot) -> Result<(), ActionError> {
        match &self.phase {
            Phase::Configuring(configuring) if !configuring.touched => {}
            Phase::Configuring(_) | Phase::Started(_) | Phase::Spoilt { .. } => {
                return Err(LoadError::NotFresh.into());
            }
        }
        match Vm::load(request).await {
            Ok(vm) => {
                self.phase = Phase::Started(Box::new(vm));
                Ok(())
            }
            Err(error) => {
                // As with the real thing, nothing else can be done with this process.
                let error = ActionError::from(error);
                let what = fuse_daemon::log::chain(&error);
                self.phase = Phase::Spoilt { what };
                Err(error)
            }
        }
    }

    async fn after_boot(&mut self, action: AfterBoot) -> Result<Answer, ActionError> {
        let Phase::Started(vm) = &mut self.phase else {
            return Err(PhaseError::BeforeBoot.into());
        };
        match action {
            AfterBoot::CreateSnapshot(request) => vm.create_snapshot(&request).await?,
            // No metrics are configured, ever, so none are due.
            AfterBoot::FlushMetrics => {}
            AfterBoot::Pause => vm.pause().await?,
            AfterBoot::Query(query) => return Ok(self.answer(query)),
            AfterBoot::Resume => vm.resume().await?,
            AfterBoot::SendCtrlAltDel => vm.send_ctrl_alt_del().await?,
            AfterBoot::UpdateDrive(update) => vm.update_drive(update).await?,
            AfterBoot::UpdateNetwork(update) => vm.update_network(&update)?,
        }
        Ok(Answer::Nothing)
    }

    fn answer(&self, query: Query) -> Answer {
        let nothing = VmConfig::default();
        let (config, state) = match &self.phase {
            Phase::Configuring(configuring) => (&configuring.config, InstanceState::NotStarted),
            Phase::Started(vm) => (vm.config(), vm.state()),
            Phase::Spoilt { .. } => (&nothing, InstanceState::NotStarted),
        };
        match query {
            Query::FullConfig => Answer::FullConfig(config.view(self.logger_config.as_ref())),
            Query::InstanceInfo => Answer::InstanceInfo(InstanceInfo {
                id: self.identity.id.clone(),
                state,
                vmm_version: self.identity.version.clone(),
                app_name: "Firecracker",
            }),
            Query::MachineConfig => Answer::MachineConfig(config.machine),
            Query::Version => Answer::Version {
                firecracker_version: self.identity.version.clone(),
            },
        }
    }
}

impl Configuring {
    fn configure(&mut self, part: Configure) -> Result<(), ConfigError> {
        self.touched = true;
        match part {
            Configure::BootSource(source) => {
                host::check_boot_source(&source)?;
                self.config.boot_source = Some(source);
            }
            Configure::Drive(drive) => {
                drive.check()?;
                host::check_drive(&drive)?;
                self.config.insert_drive(*drive)?;
            }
            Configure::Entropy(entropy) => {
                entropy.throttle()?;
                self.config.entropy = Some(entropy);
            }
            Configure::Machine(update) => {
                self.config.machine = self.config.machine.updated(update)?;
            }
            Configure::Network(interface) => {
                interface.check()?;
                self.config.check_network(&interface)?;
                self.parts
                    .take_tap(&interface.iface_id, &interface.host_dev_name)?;
                self.config.insert_network(*interface);
            }
            Configure::Serial(serial) => self.config.serial = serial,
            Configure::Vsock(vsock) => {
                vsock.check()?;
                self.parts.bind(&vsock)?;
                self.config.vsock = Some(vsock);
            }
        }
        Ok(())
    }
}

impl From<Exit> for Ending {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Guest { reason } => Self::Guest { reason },
            Exit::Died { what } => Self::Failed { what },
        }
    }
}
