//! The signals that ask for an end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM. Caught from before the process says that it is up, so that neither ends it
/// without what it holds being given back.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Takes both signals from their default, which ends the process on the spot.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Resolves when either was received since `catch`.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
