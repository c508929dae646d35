//! `fused`, the agent inside every guest.
//!
//! One static program with several lives. As the first process of a guest it is
//! init and serves the host ([`init`], [`control`]); started by itself with
//! `--listen` it is the guest's public surface ([`surface`]). `fused drain` asks
//! everything that was started in the guest to stop ([`drain`]), `fused health`
//! waits for another verdict of the probe ([`health`]), `fused services` brings
//! containers up ([`services`]).

mod cgroup;
mod clock;
mod control;
mod drain;
mod exec;
mod files;
mod freeze;
mod health;
mod init;
mod log;
mod pid1;
mod power;
mod reaper;
mod seed;
mod services;
mod surface;
mod sys;

use std::ffi::OsStr;
use std::process::ExitCode;

/// Release of the guest agent; builds that are no release say so.
pub(crate) const VERSION: &str = match option_env!("FUSE_VERSION") {
    Some(version) => version,
    None => "dev",
};

/// This program in a booted guest.
pub(crate) const PROGRAM: &str = "/run/fused";

fn main() -> ExitCode {
    if std::process::id() == 1 {
        return pid1::run();
    }
    let word = std::env::args_os().nth(1);
    match word.as_deref().and_then(OsStr::to_str) {
        Some("drain") => drain::run(),
        Some("health") => health::run(),
        Some("services") => services::main(),
        _ => surface::run(),
    }
}
