//! `fc-agent`: the host agent of a machine that runs Firecracker.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use fuse_host_agent::config::{Config, FIRECRACKER};
use fuse_host_agent::report::chain;
use fuse_host_agent::vmm::firecracker::{self, Firecracker};
use fuse_host_agent::{preflight, probe, serve};
use tracing_subscriber::EnvFilter;

/// Host agent for Firecracker machines.
///
/// Settings come from the environment: FC_AGENT_TOKEN (required), FC_DIR, FC_BIN, FC_AGENT_PORT,
/// FC_AGENT_BIND, PUBLIC_HOST and others; docs/settings.md has the list.
#[derive(Debug, Parser)]
#[command(name = "fc-agent", version = fuse_host_agent::VERSION)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the host to a control plane (the default)
    Serve,
    /// Power off all guests of a host whose agent does not run; the next agent boots them again
    StopVms,
    /// The guest image: kernel, initramfs, base root file system
    Image {
        #[command(subcommand)]
        command: ImageCommand,
    },
    /// Boot a guest with FC_BIN and say as JSON whether it answered; exit status 0 or 1
    Probe {
        /// Seconds that the guest may take
        #[arg(long, default_value_t = 30, value_name = "SECONDS",
              value_parser = clap::value_parser!(u64).range(1..=600))]
        timeout: u64,
    },
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Build the image, or the parts of it that are not current
    Build {
        /// Directory of the image; FC_DIR for an agent with default paths
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// The guest agent, a static program [default: fused beside this program]
        #[arg(long, value_name = "FILE")]
        fused: Option<PathBuf>,
        /// Build everything with the current versions of all packages
        #[arg(long)]
        refresh: bool,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A log file is for reading.
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            let message = chain(error.as_ref());
            // Nothing is left to be told if standard error is closed.
            let _closed = writeln!(std::io::stderr(), "fc-agent: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command.unwrap_or(Command::Serve) {
        Command::Serve => runtime()?.block_on(async {
            let config = Config::from_env(FIRECRACKER, |name| std::env::var(name).ok())?;
            // First of all, or the driver blames its directory for a missing privilege.
            preflight::serve(&config)?;
            serve::serve(config.clone(), driver(&config)?).await?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::StopVms => runtime()?.block_on(async {
            let config = Config::from_env(FIRECRACKER, |name| std::env::var(name).ok())?;
            let stopped = serve::stop_vms(&config, driver(&config)?).await?;
            writeln!(std::io::stdout(), "{stopped} VMs stopped")?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::Image {
            command:
                ImageCommand::Build {
                    out,
                    fused,
                    refresh,
                },
        } => build_image(out, fused, refresh),
        Command::Probe { timeout } => runtime()?.block_on(async {
            // A probe serves nobody, so it needs no token.
            let lookup = |name: &str| match name {
                "FC_AGENT_TOKEN" => Some("unused".to_owned()),
                name => std::env::var(name).ok(),
            };
            let config = Config::from_env(FIRECRACKER, lookup)?;
            let vmm = driver(&config)?;
            let limit = Duration::from_secs(timeout);
            let report = probe::probe(&config, vmm.as_ref(), limit).await;
            writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
            Ok(if report.ok {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }),
    }
}

fn build_image(out: PathBuf, fused: Option<PathBuf>, refresh: bool) -> anyhow::Result<ExitCode> {
    let beside = || Ok::<_, anyhow::Error>(std::env::current_exe()?.with_file_name("fused"));
    let fused = fused.map_or_else(beside, Ok)?;
    let options = fuse_guest_image::BuildOptions {
        out,
        fused,
        refresh,
    };
    let mut progress = |text: &str| {
        // Progress that nobody reads is no reason to stop.
        let _closed = writeln!(std::io::stderr(), "{text}");
    };
    let image = fuse_guest_image::build(&options, &mut progress)?;
    let (dir, kernel) = (image.dir.display(), &image.manifest.kernel_version);
    writeln!(std::io::stdout(), "image in {dir} with kernel {kernel}")?;
    Ok(ExitCode::SUCCESS)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

fn driver(config: &Config) -> anyhow::Result<Arc<Firecracker>> {
    firecracker::prepare_dir(&config.paths.sockets)?;
    Ok(Arc::new(Firecracker::new(
        config.paths.vmm.clone(),
        config.paths.sockets.clone(),
        config.vms.memory_limit,
    )))
}
