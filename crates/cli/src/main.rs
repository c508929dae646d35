//! `fuse`: the operator's client of one or more orchestrators, and the Fusefile compiler.
//!
//! Everything it does to a fleet is a call of the HTTP API through `fuse-client`. Exit status: 0 on
//! success, 1 on any error, the guest's own status for `environment exec`.

mod app;
mod args;
mod commands;
mod config;
mod error;
mod io;
mod local;
mod render;
mod tty;
mod wait;

use std::process::ExitCode;

use clap::Parser as _;

use crate::app::App;
use crate::args::Cli;
use crate::error::Error;
use crate::io::{Format, Io};

fn main() -> ExitCode {
    let (io, outcome) = match Cli::try_parse() {
        Ok(cli) => (Io::new(cli.global.output), run(cli)),
        Err(refused) => return args::refuse(&refused),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(io),
    }
}

fn run(cli: Cli) -> Result<(), Error> {
    let app = App::load(&cli.global)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::Runtime)?;
    let outcome = runtime.block_on(commands::dispatch(&app, cli.command));
    // A blocking read of a terminal that nobody will answer must not hold the process.
    runtime.shutdown_background();
    outcome
}

/// The release this binary was stamped with when it was built.
const VERSION: &str = match option_env!("FUSE_VERSION") {
    Some(version) => version,
    None => "dev",
};

/// The format asked for by raw arguments, for errors found before they are parsed.
fn format_of_raw_args() -> Format {
    let args: Vec<_> = std::env::args()
        .skip(1)
        .take_while(|arg| arg != "--")
        .collect();
    let joined = |arg: &str| matches!(arg, "-ojson" | "-o=json" | "--output=json");
    let split =
        |pair: &[String]| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json";
    if args.iter().any(|arg| joined(arg)) || args.windows(2).any(split) {
        Format::Json
    } else {
        Format::Table
    }
}
