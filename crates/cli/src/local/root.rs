//! The steps that need root: everything about the host agent and its VMs.
//!
//! As root they simply run. Otherwise this program runs itself under `sudo`, one hidden subcommand
//! per step; settings travel in the environment, which `sudo` is told to keep by name.

use std::process::{Command, Stdio};

use clap::ValueEnum;

use super::{Error, Layout, agent, down, tools, vmm};
use crate::io::Io;

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Start the host agent as the stack's record says.
    AgentStart,
    /// Stop the host agent; VMs go on.
    AgentStop,
    /// Stop the VMs; their disks stay.
    VmsStop,
    /// Boot a probe guest under Firecracker and print the verdict.
    Probe,
    /// Delete the state directory.
    Purge,
}

impl Step {
    /// What it is, in an error message.
    fn what(self) -> &'static str {
        match self {
            Self::AgentStart => "starting the host agent",
            Self::AgentStop => "stopping the host agent",
            Self::VmsStop => "stopping the VMs",
            Self::Probe => "probing Firecracker",
            Self::Purge => "deleting the local stack",
        }
    }

    fn argument(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

/// Makes sure that root steps can run, asking for a password once and up front if need be.
///
/// # Errors
/// When this user is not root and cannot become it.
pub(crate) fn require(io: Io) -> Result<(), Error> {
    if is_root() {
        return Ok(());
    }
    let Some(sudo) = tools::find("sudo") else {
        return Err(Error::NeedsRoot {
            why: "sudo is not installed",
        });
    };
    let run = |args: &[&str]| {
        let mut command = Command::new(&sudo);
        command.args(args).stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let quiet = Command::new(&sudo)
        .args(["-n", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if quiet.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    if !io.can_ask() {
        return Err(Error::NeedsRoot {
            why: "sudo wants a password, but there is no terminal to ask on",
        });
    }
    io.note(
        "the host agent needs root for network devices, disks and VMs; sudo asks for your password",
    );
    if run(&["-v"]) {
        Ok(())
    } else {
        Err(Error::NeedsRoot {
            why: "sudo refused",
        })
    }
}

/// Runs a step as root and returns what it printed.
///
/// # Errors
/// What the step failed with.
pub(crate) fn run(layout: &Layout, step: Step) -> Result<String, Error> {
    if is_root() {
        return run_step(layout, step);
    }
    let failed = |said: String| Error::RootStep {
        what: step.what(),
        said,
    };
    let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let places = [
        ("FUSE_LOCAL_DIR", &layout.root),
        ("FUSE_LOCAL_BIN_DIR", &layout.programs),
        ("FUSE_IMAGE_DIR", &layout.image),
    ];
    let output = Command::new("sudo")
        .arg("-n")
        .arg(format!(
            "--preserve-env={}",
            kept_variables(&places.map(|(name, _)| name))
        ))
        .arg("--")
        .arg(own)
        .args(["local", "root", &step.argument()])
        .envs(places)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(
        String::from_utf8_lossy(&output.stderr)
            .trim_end()
            .to_owned(),
    ))
}

/// Runs a step in this process, which must be root.
///
/// # Errors
/// What the step failed with.
pub(crate) fn run_step(layout: &Layout, step: Step) -> Result<String, Error> {
    match step {
        Step::AgentStart => agent::start(layout).map(|()| String::new()),
        Step::AgentStop => agent::stop(layout).map(|()| String::new()),
        Step::VmsStop => agent::stop_vms(layout).map(|()| String::new()),
        Step::Probe => vmm::probe(layout),
        Step::Purge => down::delete(layout).map(|()| String::new()),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Names of the settings of our programs, for `sudo` to keep. Names only: values are not arguments.
fn kept_variables(more: &[&str]) -> String {
    let ours = |name: &String| {
        name.starts_with("FUSE_")
            || name.starts_with("FC_")
            || name == "PUBLIC_HOST"
            || name == "RUST_LOG"
    };
    let mut names: Vec<String> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(ours)
        .collect();
    names.extend(more.iter().map(|name| (*name).to_owned()));
    names.sort();
    names.dedup();
    names.join(",")
}
