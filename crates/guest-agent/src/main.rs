//! `fused`, the agent inside every guest.
//!
//! One static program with two lives. As the first process of a guest it is
//! init and serves the host ([`init`], [`control`]); started by itself with
//! `--listen` it is the guest's public surface ([`surface`]).

mod cgroup;
mod clock;
mod control;
mod exec;
mod files;
mod init;
mod log;
mod pid1;
mod power;
mod reaper;
mod surface;
mod sys;

use std::process::ExitCode;

/// Version of the guest agent.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

fn main() -> ExitCode {
    if std::process::id() == 1 {
        pid1::run()
    } else {
        surface::run()
    }
}
