//! `fc-emulator`: Firecracker's command line and API, with QEMU behind them.
//!
//! For machines whose KVM is missing or cannot run guests. A host agent is
//! pointed at this program in Firecracker's place and cannot tell the two apart;
//! README.md says where they differ.
//!
//! ```text
//! API socket -> api (parse) -> controller (one task) -> vm -> QEMU (monitor)
//!                                                       +--> vsock bridge <-> serial port
//! ```
//!
//! Everything runs on the main thread: QEMU is tied to the thread that starts it.

mod action;
mod api;
mod cli;
mod config;
mod controller;
mod host;
mod logger;
mod qemu;
mod run;
mod snapshot;
mod sys;
mod terminal;
mod vm;
mod vsock;

use std::process::ExitCode;

use clap::Parser as _;

use cli::Cli;

/// Firecracker's code for a command line that is not understood.
const BAD_ARGUMENTS: u8 = 153;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help is asked for and goes to standard output.
            let code = if error.use_stderr() { BAD_ARGUMENTS } else { 0 };
            return match error.print() {
                Ok(()) => ExitCode::from(code),
                Err(_) => ExitCode::FAILURE,
            };
        }
    };
    match run::run(cli) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(
                error = format!("{error:#}"),
                "fc-emulator exiting with error"
            );
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
