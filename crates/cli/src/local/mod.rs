//! The stack on this machine: an orchestrator and a host agent as background programs, one host.
//!
//! ```text
//! up:    checks ─▶ image ─▶ VMM (probe guest) ─▶ orchestrator, fc-agent ─▶ host "local" ─▶ context "local"
//! down:  orchestrator, fc-agent, then the VMs; disks and the database stay
//! ```
//!
//! Invariants: everything that can be refused is refused before anything is started; what this run
//! started is stopped again when a later step fails; tokens travel in files (0600) and environments,
//! never in arguments. Only the host agent's side needs root.

mod agent;
mod daemon;
mod error;
mod guests;
mod image;
mod layout;
mod orchestrator;
mod ports;
mod record;
mod root;
mod tokens;
mod tools;
mod vmm;

pub(crate) mod down;
pub(crate) mod status;
pub(crate) mod up;

pub(crate) use daemon::become_daemon;
pub(crate) use error::Error;
pub(crate) use layout::{Layout, Ports};
pub(crate) use root::{Step, run_step};

/// Name of the context and of the host.
pub(crate) const NAME: &str = "local";
