//! `fused services`: the containers of a Fusefile's `services`, by compose on podman.
//!
//! ```text
//! up ──> keep (in the background): podman's API on its socket, health checks
//!   ├──> podman load              archives in /srv/images
//!   ├──> compose up -d            order, images, networks
//!   └──> looks how each container does, and reports it
//! ```
//!
//! The control plane calls `up` after the startup script and `fused drain` stops them, those that others need
//! last. Nothing else in a guest would do what compose and podman expect of a system: there is no service
//! manager that keeps podman's API or that times health checks.

mod archives;
mod keep;
mod plan;
mod podman;
mod run;
mod stop;
mod up;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use thiserror::Error;

pub(crate) use stop::stop;

/// What the control plane derived from the manifest; absent without services.
const COMPOSE_FILE: &str = "/fuse/compose.yaml";
const MANIFEST: &str = "/fuse/manifest.json";
/// One line of JSON for every step that a service takes.
const REPORTS: &str = "/fuse/services.ndjson";
/// Where compose looks for podman.
const SOCKET: &str = "/run/podman/podman.sock";
/// Name of the compose project.
const PROJECT: &str = "fuse";
/// The group of everything that runs for services. One of users': their bounds are its bounds.
const GROUP: &str = "/sys/fs/cgroup/fuse.user/services";

/// Containers of a Fusefile's services.
#[derive(Debug, Parser)]
#[command(name = "fused services")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring them up
    Up {
        /// Seconds that it may take
        #[arg(long, default_value_t = 570, value_name = "SECONDS")]
        timeout: u64,
    },
    /// Keep podman's API and the health checks running; `up` starts it
    Keep,
}

/// Why services are not up. The text is for the author of the Fusefile.
#[derive(Debug, Error)]
enum Error {
    /// The image is no image for services.
    #[error(
        "this image has no {tool}, which services need; use an image that has podman and docker-compose, for example \
         `image: services`, which `fc-agent image build --variant services` makes on the host"
    )]
    NoTool { tool: &'static str },
    #[error("cannot {verb} {}", .path.display())]
    File {
        verb: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{MANIFEST} is not a manifest")]
    Manifest(#[source] serde_json::Error),
    #[error("podman's API does not come up: {0}")]
    NoApi(String),
    #[error("podman's API: {0}")]
    Api(String),
    #[error("cannot start {program}")]
    Start {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{name} ended with {status}:\n{output}")]
    Program {
        name: &'static str,
        status: String,
        output: String,
    },
    #[error("service {name} {what}{}", of_output(.output))]
    Service {
        name: String,
        what: String,
        output: String,
    },
    #[error("they did not come up within {} s", .0.as_secs())]
    TimedOut(Duration),
}

fn of_output(output: &str) -> String {
    match output.trim_end() {
        "" => ", and printed nothing".to_owned(),
        output => format!("; the end of what it printed:\n{output}"),
    }
}

impl Error {
    fn file(verb: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { verb, path, source }
    }
}

/// Runs the subcommand from this process's command line: 0 if all services are up, else 1 and the reason on
/// standard error.
pub(crate) fn main() -> ExitCode {
    let options = Options::parse_from(std::env::args_os().skip(1));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(async {
            match options.command {
                Command::Up { timeout } => up::up(Duration::from_secs(timeout)).await,
                Command::Keep => keep::keep().await,
            }
        }),
        Err(source) => Err(Error::Start {
            program: "the runtime".to_owned(),
            source,
        }),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            // Nobody is left to be told if this fails.
            let _closed = writeln!(std::io::stderr(), "{error}{}", cause.unwrap_or_default());
            ExitCode::FAILURE
        }
    }
}

/// Where a program of the image is.
fn find(tool: &'static str) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|dir| dir.join(tool))
        .find(|file| file.is_file())
        .ok_or(Error::NoTool { tool })
}
