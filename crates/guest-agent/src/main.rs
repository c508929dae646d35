//! `fused`, the agent inside every guest.
//!
//! One static program with three lives. As the first process of a guest it is
//! init and serves the host ([`init`], [`control`]); started by itself with
//! `--listen` it is the guest's public surface ([`surface`]), and as `fused drain`
//! it asks everything that was started in the guest to stop ([`drain`]).

mod cgroup;
mod clock;
mod control;
mod drain;
mod exec;
mod files;
mod freeze;
mod init;
mod log;
mod pid1;
mod power;
mod reaper;
mod seed;
mod surface;
mod sys;

use std::process::ExitCode;

/// Version of the guest agent.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// This program in a booted guest.
pub(crate) const PROGRAM: &str = "/run/fused";

fn main() -> ExitCode {
    if std::process::id() == 1 {
        pid1::run()
    } else if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "drain")
    {
        drain::run()
    } else {
        surface::run()
    }
}
