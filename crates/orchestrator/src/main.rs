//! `orchestrator`: the control plane of a Fuse fleet.

use std::process::ExitCode;

use clap::Parser as _;
use fuse_orchestrator::{config, run};

fn main() -> ExitCode {
    let args = config::Args::parse();
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("orchestrator: {}", fuse_daemon::log::chain(e.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn start(mut args: config::Args) -> anyhow::Result<()> {
    let mint = args.mint_api_key.take();
    let command = args.command.take();
    let config = config::Config::resolve(args, |name| std::env::var(name).ok())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let outcome = match (command, mint) {
        (Some(config::Command::Rekey), _) => runtime.block_on(run::rekey(config)),
        (Some(config::Command::BackupCheck), _) => runtime.block_on(run::check_backup(config)),
        // Required, so given.
        (Some(config::Command::Reconcile { dry_run: _ }), _) => {
            runtime.block_on(run::preview_reconcile(config))
        }
        (None, Some(label)) => runtime.block_on(run::mint_api_key(config, label)),
        (None, None) => runtime.block_on(run::run(config)),
    };
    // What is still running has had its time; recovery deals with it.
    runtime.shutdown_background();
    outcome
}
