//! Why the public surface does not serve.

use std::time::Duration;

use thiserror::Error;

use crate::reaper::Exit;

/// A program must answer on its port within this time.
pub(super) const START_PATIENCE: Duration = Duration::from_secs(15);

/// Why the surface does not serve.
#[derive(Debug, Error)]
pub(crate) enum SurfaceError {
    /// The request makes no sense, or cannot be met as things are.
    #[error("{0}")]
    Invalid(String),
    /// The program cannot be started.
    #[error("cannot start {program}")]
    Start {
        /// Which.
        program: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The program ended before it served.
    #[error("{program} ended with {exit} before it served: {output}")]
    Died {
        /// Which.
        program: String,
        /// How it ended.
        exit: Exit,
        /// The end of what it said.
        output: String,
    },
    /// The program runs but does not serve.
    #[error("{program} did not listen on {listen} within {} s: {output}", START_PATIENCE.as_secs())]
    Silent {
        /// Which.
        program: String,
        /// Where it should.
        listen: String,
        /// The end of what it said.
        output: String,
    },
}
