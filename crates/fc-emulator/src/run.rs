//! Puts the parts together and waits for the end.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Server;
use crate::cli::{Cli, VERSION};
use crate::config::{ConfigFile, LoggerConfig};
use crate::controller::{Controller, Ending, Identity};
use crate::logger::Logger;
use crate::snapshot;
use crate::terminal::TerminalMode;

/// Requests that may wait for the one under way; more wait in their connections.
const QUEUE: usize = 16;

/// A shell's code for a process that ended by a signal is this plus the signal.
const SIGNALLED: u8 = 128;

/// Runs the program to its end.
///
/// # Errors
/// It could not begin: the socket, the log or the configuration file.
#[expect(
    clippy::print_stdout,
    reason = "answers to --version and its like are the output"
)]
pub(crate) fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    if cli.version {
        println!("Firecracker v{VERSION}\n");
        return Ok(ExitCode::SUCCESS);
    }
    if cli.snapshot_version {
        println!("v{}.0.0", snapshot::FORMAT);
        return Ok(ExitCode::SUCCESS);
    }
    // QEMU is tied to the thread that starts it, so there must be only this one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    if let Some(path) = &cli.describe_snapshot {
        let state = runtime.block_on(snapshot::State::read(path))?;
        println!("v{}.0.0", state.fc_emulator_snapshot);
        return Ok(ExitCode::SUCCESS);
    }
    let code = runtime.block_on(Box::pin(serve(cli)));
    // A blocking read of a file must not keep the process.
    runtime.shutdown_background();
    code
}

async fn serve(cli: Cli) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new().context("cannot watch signals")?;
    let logger = Logger::install(&cli.id.0);
    logger.update(&LoggerConfig {
        log_path: cli.log_path,
        level: cli.level,
        show_level: cli.show_level.then_some(true),
        show_log_origin: cli.show_log_origin.then_some(true),
        module: cli.module,
    })?;
    let file = cli.config_file.as_deref().map(read_config).transpose()?;
    let server = match cli.no_api {
        true => None,
        false => Some(Server::bind(&cli.api_sock, cli.http_api_max_payload_size)?),
    };
    tracing::info!(version = VERSION, "Running Firecracker (emulated by QEMU)");

    // Declared in front of the controller, so that it outlives QEMU.
    let _terminal = TerminalMode::remember();
    let (queue, mut requests) = mpsc::channel(QUEUE);
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    if let Some(server) = server {
        tasks.spawn(server.run(queue, stop.clone()));
    }
    let identity = Identity {
        id: cli.id.0,
        version: VERSION.to_owned(),
    };
    let mut controller = Controller::new(identity, logger);
    let life = async {
        if let Some(file) = file {
            controller
                .boot_from(file)
                .await
                .context("cannot boot the configuration file")?;
        }
        anyhow::Ok(controller.run(&mut requests).await)
    };
    let code = tokio::select! {
        ending = life => ending?.map(|ending| report(&ending)),
        signal = signals.next() => {
            tracing::info!(signal, "Firecracker exiting on a signal");
            Some(ExitCode::from(SIGNALLED.saturating_add(signal)))
        }
    };
    // Nothing is asked of it any more: QEMU ends here if it still runs.
    drop(controller);
    drop(requests);
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    Ok(code.unwrap_or(ExitCode::SUCCESS))
}

fn read_config(path: &Path) -> anyhow::Result<ConfigFile> {
    let text = std::fs::read(path)
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    let file: ConfigFile = serde_json::from_slice(&text)
        .with_context(|| format!("the configuration file {} is not valid", path.display()))?;
    if let Some(section) = file.unsupported() {
        bail!(
            "the configuration file {} asks for {section}, which fc-emulator does not have; remove that section",
            path.display()
        );
    }
    Ok(file)
}

fn report(ending: &Ending) -> ExitCode {
    match ending {
        Ending::Guest { reason } => {
            tracing::info!(reason, "Firecracker exiting successfully. exit_code=0");
        }
        Ending::Failed { what } => {
            tracing::error!(what, "Firecracker exiting with error. exit_code=1");
            eprintln!("Error: {what}");
        }
    }
    ending.exit_code()
}

/// The signals that end the process in good order.
struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Number of the next signal.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.hangup.recv() => 1,
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
        }
    }
}
