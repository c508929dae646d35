//! Log lines on standard error, filtered by `RUST_LOG` (default: `info`).

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Installs the subscriber of the process; a second call changes nothing.
pub fn init() {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn,hyper=warn"));
    let installed = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
    if installed.is_err() {
        tracing::debug!("a log subscriber is installed already");
    }
}
