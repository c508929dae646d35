//! The public surface: `fused --listen ...`, an HTTP server on the guest's
//! network that the control plane and its users talk to.
//!
//! It runs as a process of its own, started and kept alive by PID 1
//! ([`supervise`]), and can be replaced by a program of the user's.

mod credentials;
mod options;
mod probe;
mod server;
pub(crate) mod supervise;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use credentials::Credentials;
use options::Options;
use server::{Served, Server};

/// Runs the surface from this process's command line.
pub(crate) fn run() -> ExitCode {
    let options = Options::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_target(false)
        .with_timer(Prefixed)
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let served = match runtime {
        Ok(runtime) => runtime.block_on(serve(options)),
        Err(error) => Err(anyhow::Error::new(error)),
    };
    match served {
        Ok(Served::Drained) => ExitCode::SUCCESS,
        Ok(Served::CutOff) => {
            tracing::warn!("requests were still open when the time to finish them was over");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(options: Options) -> anyhow::Result<Served> {
    options.warn_obsolete();
    let facts = options.facts()?;
    let files = options.credential_files();
    let credentials = Credentials::load(&files)?;
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let current = credentials::keep_current(&credentials, files, &tasks)?;
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, health) = watch::channel(None);
    if let Some(config) = probe::load(&options.healthcheck)? {
        let file = options.health_state.clone();
        tasks.spawn(probe::run(config, file, sender, stop.clone()));
    }
    let server = Server::bind(&options.listen, facts, current, health).await?;
    let stopping = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        stopping.cancel();
    });
    Ok(server.run(stop).await)
}

/// `[fused]` and the time in UTC.
struct Prefixed;

impl FormatTime for Prefixed {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        writer.write_str("[fused] ")?;
        SystemTime.format_time(writer)
    }
}
