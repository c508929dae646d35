//! Measures Fuse against its budgets and prints what came out, with ratios.
//!
//! `ops/dev/bench.sh` builds the release programs and runs this. Everything is measured from outside, on the programs
//! as they ship. On a shared machine absolute figures are for orientation; ratios within one run decide.

mod bare;
mod fan_out;
mod fleet;
mod fusefile;
mod guest;
mod load;
mod many;
mod noop;
mod report;
mod snapshot;
mod startup;
mod stats;
mod store;
mod subscribers;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use report::Report;

/// Groups of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// The Fusefile compiler: cold start, a long file, a large tree.
    Fusefile,
    /// Real guests: create against a bare boot, exec round trip, the host's own work.
    Guest,
    /// Snapshots of real guests, against `cp` of the same bytes.
    Snapshot,
    /// Hundreds of VMs on one host, without machines.
    Many,
    /// Throughput of the control plane on the stub provider, per store.
    Store,
    /// Many subscribers of event streams.
    Events,
    /// Placement and lists in a fleet of ten thousand hosts.
    Fleet,
    /// Start-up time and idle memory.
    Startup,
}

/// Measures Fuse against its budgets.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Print JSON on stdout (the table goes to stderr then)
    #[arg(long)]
    json: bool,
    /// Measure only these groups
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Group>,
    /// A tenth of the work: to see that everything runs, not for figures
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    if let Some(socket) = noop::api_socket(std::env::args_os()) {
        return ended(noop::run(&socket));
    }
    if let Some(address) = fan_out::address(std::env::args_os()) {
        return ended(fan_out::run(address));
    }
    let arguments = Arguments::parse();
    ended(run(&arguments))
}

fn ended(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::note(&format!("fuse-bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let wanted = |group| arguments.only.is_empty() || arguments.only.contains(&group);
    let mut report = Report::new();
    runtime.block_on(async {
        if wanted(Group::Fusefile) {
            fusefile::measure(&mut report, arguments.quick)?;
        }
        if wanted(Group::Startup) {
            startup::measure(&mut report, arguments.quick).await?;
        }
        if wanted(Group::Store) {
            store::measure(&mut report, arguments.quick).await?;
        }
        if wanted(Group::Events) {
            subscribers::measure(&mut report, arguments.quick).await?;
        }
        if wanted(Group::Fleet) {
            fleet::measure(&mut report, arguments.quick).await?;
        }
        if wanted(Group::Many) {
            many::measure(&mut report, arguments.quick).await?;
        }
        if wanted(Group::Guest) {
            guest::measure(&mut report, arguments.quick).await?;
        }
        if wanted(Group::Snapshot) {
            snapshot::measure(&mut report, arguments.quick).await?;
        }
        anyhow::Ok(())
    })?;
    report.print(arguments.json)
}
