//! The host agent: drives the VMs of one machine and serves them to the control plane.
//!
//! One library for all agents; a program picks a [`config::Backend`] and a [`vmm::Vmm`] driver.
//!
//! * [`config`]: settings from the environment;
//! * [`preflight`]: what must be true of the host, one message each;
//! * [`http`]: the host contract on axum, thin;
//! * [`registry`]: one task per VM owns it and takes its operations in order;
//! * [`disk`], [`net`], [`vmm`], [`guest`], [`huge_pages`], [`cgroup`]: what a VM is made of;
//! * [`gpu`]: devices of the host that guests are given;
//! * [`snapshot`]: the snapshots of this host; [`artifact`]: how they get to another one;
//! * [`program`]: the command line; [`serve`], [`probe`]: its subcommands;
//! * [`report`], [`file_error`]: how errors read.

pub mod artifact;
pub mod capacity;
pub mod cgroup;
pub mod check;
mod clock_set;
pub mod config;
mod dir_watch;
pub mod disk;
mod fail_point;
pub mod file_error;
pub mod gpu;
pub mod guest;
pub mod http;
pub mod huge_pages;
mod metrics;
pub mod net;
pub mod preflight;
pub mod probe;
pub mod program;
pub mod registry;
pub mod serve;
pub mod snapshot;
mod sys;
#[cfg(test)]
mod testing;
pub mod tools;
mod unix_socket;
pub mod vmm;

pub use fuse_daemon::log as report;

/// The release this build was stamped with.
pub const VERSION: &str = match option_env!("FUSE_VERSION") {
    Some(version) => version,
    None => "dev",
};
