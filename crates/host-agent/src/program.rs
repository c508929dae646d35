//! The command line that all agents share. A program names its [`Backend`] and makes its driver.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use fuse_guest_image::{BuildOptions, Variant, VariantOptions};
use thiserror::Error;

use crate::config::{Backend, Config, ConfigError};
use crate::preflight::{self, PreflightError};
use crate::report::chain;
use crate::serve::{self, ServeError};
use crate::vmm::Vmm;
use crate::{VERSION, check, probe};

/// What a driver is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Making VMs, for as long as the agent runs.
    Serve,
    /// Booting one guest to see whether it answers.
    Probe,
    /// Ending the VMs there are.
    Stop,
}

/// What differs between the programs.
#[async_trait]
pub trait Program: Send + Sync {
    /// The agent.
    fn backend(&self) -> Backend;

    /// One line on what it is.
    fn about(&self) -> &'static str;

    /// Makes the driver.
    ///
    /// # Errors
    /// The host lacks something that the driver needs.
    async fn driver(
        &self,
        config: &Config,
        purpose: Purpose,
    ) -> Result<Arc<dyn Vmm>, Box<dyn Error + Send + Sync>>;
}

/// Why a program ends early.
#[derive(Debug, Error)]
enum ProgramError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Driver(#[from] Box<dyn Error + Send + Sync>),
    #[error(transparent)]
    Image(#[from] fuse_guest_image::ImageError),
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
    #[error("cannot name the kernel {}", .path.display())]
    Kernel {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot write the answer")]
    Output(#[from] std::io::Error),
}

#[derive(Debug, Parser)]
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
    /// Look at what guests need on this host, and say as JSON what is wrong and which command mends it
    Check,
    /// Boot a guest and say as JSON whether it answered; exit status 0 or 1
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
        /// Directory of the image; the agent's own directory for default paths
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// The guest agent, a static program [default: fused beside this program]
        #[arg(long, value_name = "FILE")]
        fused: Option<PathBuf>,
        /// Build everything with the current versions of all packages
        #[arg(long)]
        refresh: bool,
        /// Also build a root file system with more in it, which requests name: `services` has podman and compose,
        /// `node` has Node; can be repeated. Those that are there already are kept current
        #[arg(long = "variant", value_name = "NAME")]
        variants: Vec<String>,
    },
}

/// Runs `program` as the command line says.
#[must_use]
pub fn main(program: &dyn Program) -> ExitCode {
    let backend = program.backend();
    let args = Args::from_arg_matches(&command(program).get_matches());
    let args = args.unwrap_or_else(|error| error.exit());
    fuse_daemon::log::init();
    match run(program, args) {
        Ok(code) => code,
        Err(error) => {
            let message = chain(&error);
            // Nothing is left to be told if standard error is closed.
            let _closed = writeln!(std::io::stderr(), "{}: {message}", backend.app_name);
            ExitCode::FAILURE
        }
    }
}

fn command(program: &dyn Program) -> clap::Command {
    let Backend {
        app_name, prefix, ..
    } = program.backend();
    let settings = format!(
        "{}\n\nSettings come from the environment: {prefix}_AGENT_TOKEN (required), {prefix}_DIR, \
         {prefix}_BIN, {prefix}_AGENT_PORT, {prefix}_AGENT_BIND, PUBLIC_HOST and others; \
         docs/settings.md has the list.",
        program.about()
    );
    Args::command()
        .name(app_name)
        .version(VERSION)
        .about(program.about())
        .long_about(settings)
}

fn run(program: &dyn Program, args: Args) -> Result<ExitCode, ProgramError> {
    let environment = |name: &str| std::env::var(name).ok();
    let backend = program.backend();
    match args.command.unwrap_or(Command::Serve) {
        Command::Serve => runtime()?.block_on(async {
            let config = Config::from_env(backend, environment)?;
            // First of all, or the driver blames its directory for a missing privilege.
            preflight::serve(&config)?;
            let driver = program.driver(&config, Purpose::Serve).await?;
            serve::serve(config, driver).await?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::StopVms => runtime()?.block_on(async {
            let config = Config::from_env(backend, environment)?;
            let driver = program.driver(&config, Purpose::Stop).await?;
            let stopped = serve::stop_vms(&config, driver).await?;
            writeln!(std::io::stdout(), "{stopped} VMs stopped")?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::Image {
            command:
                ImageCommand::Build {
                    out,
                    fused,
                    refresh,
                    variants,
                },
        } => {
            let beside =
                || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("fused"));
            let options = BuildOptions {
                out,
                fused: fused.map_or_else(beside, Ok)?,
                refresh,
            };
            build_image(backend, &options, &variants)
        }
        Command::Check => runtime()?.block_on(async {
            let config = tokenless(backend, environment)?;
            let findings = check::look(&config).await;
            let text = serde_json::to_string(&findings).map_err(std::io::Error::other)?;
            writeln!(std::io::stdout(), "{text}")?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::Probe { timeout } => runtime()?.block_on(async {
            let config = tokenless(backend, environment)?;
            let vmm = program.driver(&config, Purpose::Probe).await?;
            let limit = Duration::from_secs(timeout);
            let report = probe::probe(&config, vmm.as_ref(), limit).await;
            let text = serde_json::to_string(&report).map_err(std::io::Error::other)?;
            writeln!(std::io::stdout(), "{text}")?;
            Ok(if report.ok {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }),
    }
}

/// The configuration of a command that serves nobody, and so needs no token.
fn tokenless(
    backend: Backend,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Config, ConfigError> {
    let token = format!("{}_AGENT_TOKEN", backend.prefix);
    Config::from_env(backend, |name: &str| match name {
        name if name == token => Some("unused".to_owned()),
        name => environment(name),
    })
}

fn build_image(
    backend: Backend,
    options: &BuildOptions,
    variants: &[String],
) -> Result<ExitCode, ProgramError> {
    let variants = variants.iter().map(|name| Variant::find(name));
    let mut variants = variants.collect::<Result<Vec<_>, _>>()?;
    let mut progress = |text: &str| {
        // Progress that nobody reads is no reason to stop.
        let _closed = writeln!(std::io::stderr(), "{text}");
    };
    let image = fuse_guest_image::build(options, &mut progress)?;
    // Images of earlier builds have only the uncompressed kernel.
    if !image.manifest.files.contains_key(backend.kernel) {
        name_kernel(&image.dir, backend.kernel)?;
    }
    let mut said = std::io::stdout();
    let (dir, kernel) = (image.dir.display(), &image.manifest.kernel_version);
    writeln!(said, "image in {dir} with kernel {kernel}")?;
    // Those that are there belong to the base that was there, and follow it.
    variants.extend(Variant::built(&image));
    variants.sort_by_key(|variant| variant.name);
    variants.dedup();
    for variant in variants {
        let wanted = VariantOptions {
            variant,
            extension: backend.image_extension,
            refresh: options.refresh,
        };
        let file = fuse_guest_image::build_variant(&image, &wanted, &mut progress)?;
        writeln!(said, "image {} in {}", variant.name, file.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives the kernel that was built the name that the agent looks for.
fn name_kernel(dir: &std::path::Path, name: &str) -> Result<(), ProgramError> {
    let (built, path) = (dir.join(fuse_guest_image::KERNEL), dir.join(name));
    let failed = |source| ProgramError::Kernel {
        path: path.clone(),
        source,
    };
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    std::fs::hard_link(&built, &path).map_err(failed)
}

fn runtime() -> Result<tokio::runtime::Runtime, ProgramError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().build().map_err(ProgramError::Runtime)
}
