//! Why the local stack was not started, stopped or removed: each says what is wrong and what to do.

use std::io;
use std::path::PathBuf;

use fuse_client::ApiError;

/// A refusal or a failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Neither `HOME` nor the override says where the state would be.
    #[error("no home directory: set HOME, or FUSE_LOCAL_DIR to the directory for the local stack")]
    NoHome,
    /// Another system.
    #[error(
        "the local stack runs on Linux only; on this machine, `fuse connect` to an orchestrator elsewhere"
    )]
    NotLinux,
    /// The programs are not where they should be.
    #[error(
        "missing {}: not found in {}. build all programs (`make build`), or point FUSE_LOCAL_BIN_DIR at them",
        names.join(", "),
        dir.display()
    )]
    Programs {
        /// Which.
        names: Vec<&'static str>,
        /// Where they were looked for.
        dir: PathBuf,
    },
    /// Tools of the system are not installed.
    #[error("missing tools: {}. install the packages: {}", tools.join(", "), packages.join(" "))]
    Tools {
        /// Programs.
        tools: Vec<&'static str>,
        /// The Debian or Ubuntu packages with them.
        packages: Vec<&'static str>,
    },
    /// There is no guest image and it cannot be built here.
    #[error(
        "no guest image in {}: {} is missing. `make image` builds it once; FUSE_IMAGE_DIR names another place",
        dir.display(),
        file
    )]
    Image {
        /// Where it should be.
        dir: PathBuf,
        /// The first file that is not there.
        file: &'static str,
    },
    /// The image was not built.
    #[error("could not build the guest image in {}:\n{said}", dir.display())]
    ImageBuild {
        /// Where it would be.
        dir: PathBuf,
        /// What the builder said.
        said: String,
    },
    /// A port is taken.
    #[error(
        "port {port} ({purpose}) is in use{}. stop that program, or choose another port with {flag} <port>",
        holder(by)
    )]
    PortInUse {
        /// The port.
        port: u16,
        /// What it is for.
        purpose: &'static str,
        /// Who has it, when that can be found out.
        by: Option<String>,
        /// The flag that moves ours.
        flag: &'static str,
    },
    /// The stack runs with other ports.
    #[error(
        "the local stack already runs on ports {orchestrator} and {agent}; `fuse local down` first to move it"
    )]
    OtherPorts {
        /// Port of the running orchestrator.
        orchestrator: u16,
        /// Port of the running agent.
        agent: u16,
    },
    /// Root is needed and cannot be had.
    #[error(
        "the host agent needs root (network devices, disks, VMs) and {why}. run this as root, \
         or allow this user to use sudo"
    )]
    NeedsRoot {
        /// What stands in the way.
        why: &'static str,
    },
    /// A step that runs as root failed.
    #[error("{what} failed:\n{said}")]
    RootStep {
        /// The step.
        what: &'static str,
        /// What it said.
        said: String,
    },
    /// Two commands at once.
    #[error("another `fuse local` command is at work on {}; wait for it", dir.display())]
    Busy {
        /// The state directory.
        dir: PathBuf,
    },
    /// The directory belongs to something else.
    #[error(
        "{} is not empty and holds no local stack; point FUSE_LOCAL_DIR at a directory of its own",
        dir.display()
    )]
    NotOurs {
        /// The directory.
        dir: PathBuf,
    },
    /// A file of the stack.
    #[error("could not {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A stored token or key was damaged.
    #[error("{} does not hold {expected}; restore it, or start over with `fuse local down --purge`", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
    /// A program could not be started.
    #[error("could not start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A program ended right after its start.
    #[error("{name} ended right after its start; the end of {}:\n{tail}", log.display())]
    Died {
        /// The program.
        name: &'static str,
        /// Its log.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// A program does not answer.
    #[error("{name} did not answer at {url} within {seconds}s; the end of {}:\n{tail}", log.display())]
    NotReady {
        /// The program.
        name: &'static str,
        /// Where it should.
        url: String,
        /// How long was waited.
        seconds: u64,
        /// Its log.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// Something of another stack answers.
    #[error(
        "a {name} that does not belong to this stack answers at {url}; stop it, or choose another port"
    )]
    Foreign {
        /// The program.
        name: &'static str,
        /// Where.
        url: String,
    },
    /// A program does not end.
    #[error("could not stop {name} (process {pid}): {source}")]
    Stop {
        /// The program.
        name: &'static str,
        /// Its process.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
    /// The new orchestrator refused a call.
    #[error("{}", crate::render::api::message(.0))]
    Client(#[from] fuse_client::Error),
}

fn holder(by: &Option<String>) -> String {
    by.as_ref()
        .map(|by| format!(" by {by}"))
        .unwrap_or_default()
}

impl Error {
    /// The orchestrator's error behind it, if any.
    pub(crate) fn api(&self) -> Option<&ApiError> {
        match self {
            Self::Client(error) => error.api(),
            _ => None,
        }
    }
}

/// Names the file in an error of the system.
pub(super) fn file_error<'a>(
    action: &'static str,
    path: &'a std::path::Path,
) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::File {
        action,
        path: path.to_owned(),
        source,
    }
}
