//! The error that ends a command, and how it is printed.
//!
//! Invariants: one message on stderr, the same words on a terminal and in a pipe; in JSON mode one
//! object `{"error":{code,message,request_id}}` on one line. A guest's exit status and an error that
//! was already shown end the program without a message.

use std::process::ExitCode;

use serde::Serialize;

use crate::commands::{
    build, connect, context, environment, healthy, host, init, man, secrets, snapshot, token_file,
    up,
};
use crate::io::Io;
use crate::{config, local, render, wait};

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The configuration file.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// No context to talk to, or an unknown one.
    #[error(transparent)]
    Context(#[from] context::Error),
    /// The orchestrator, or the way to it.
    #[error("{}", render::api::message(.0))]
    Client(#[from] fuse_client::Error),
    /// `--token-file`.
    #[error(transparent)]
    TokenFile(#[from] token_file::Error),
    /// `connect`.
    #[error(transparent)]
    Connect(#[from] connect::Error),
    /// `host`.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// `environment`.
    #[error(transparent)]
    Environment(#[from] environment::Error),
    /// `snapshot`.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// `up`.
    #[error(transparent)]
    Up(#[from] up::Error),
    /// `--wait-healthy`.
    #[error(transparent)]
    Healthy(#[from] healthy::Error),
    /// `build`.
    #[error(transparent)]
    Build(#[from] build::Error),
    /// `init`.
    #[error(transparent)]
    Init(#[from] init::Error),
    /// `man`.
    #[error(transparent)]
    Man(#[from] man::Error),
    /// `--secret` and its relatives.
    #[error(transparent)]
    Secrets(#[from] secrets::Error),
    /// Waiting for a state.
    #[error(transparent)]
    Wait(#[from] wait::Error),
    /// `local`.
    #[error(transparent)]
    Local(#[from] local::Error),
    /// A confirmation was declined, or could not be asked for.
    #[error("{what}; pass --yes to go ahead without being asked")]
    NotConfirmed {
        /// What was not confirmed, and why.
        what: &'static str,
    },
    /// A form was left.
    #[error("the form could not be completed: {0}")]
    Form(#[from] inquire::InquireError),
    /// stdout cannot be written.
    #[error("could not write the output: {0}")]
    Output(#[from] std::io::Error),
    /// The asynchronous runtime.
    #[error("could not start the runtime: {0}")]
    Runtime(#[source] std::io::Error),
    /// Not an error: the process ends with this status and says nothing.
    #[error("exit status {0}")]
    Status(u8),
}

impl Error {
    /// Prints the error and turns it into an exit status.
    pub(crate) fn report(&self, io: Io) -> ExitCode {
        match self {
            Self::Status(code) => return ExitCode::from(*code),
            // The reader of our output went away (`| head`): there is nobody to tell.
            Self::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            _ => {
                let request_id = self.api().and_then(|api| api.request_id.clone());
                Report {
                    code: self.code(),
                    message: self.to_string(),
                    request_id,
                }
                .print(io);
            }
        }
        match self {
            Self::Wait(wait::Error::Interrupted { .. })
            | Self::Build(build::Error::Interrupted) => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }

    fn api(&self) -> Option<&fuse_client::ApiError> {
        match self {
            Self::Client(error) => error.api(),
            Self::Connect(error) => error.api(),
            Self::Host(error) => error.api(),
            Self::Local(error) => error.api(),
            _ => None,
        }
    }

    /// The stable word for programs: the API's own code where there is one.
    fn code(&self) -> &str {
        if let Some(api) = self.api() {
            return if api.code_text.is_empty() {
                "http_error"
            } else {
                &api.code_text
            };
        }
        match self {
            Self::Config(_) | Self::Context(_) => "config",
            Self::Client(_) | Self::Connect(_) => "unreachable",
            Self::Host(_)
            | Self::Environment(_)
            | Self::Secrets(_)
            | Self::Snapshot(_)
            | Self::TokenFile(_) => "invalid_argument",
            Self::Up(error) => error.code(),
            Self::Healthy(error) => error.code(),
            Self::Wait(error) => error.code(),
            Self::Init(_) => "init",
            Self::Build(_) => "build",
            Self::Local(_) => "local",
            Self::NotConfirmed { .. } | Self::Form(_) => "not_confirmed",
            Self::Man(_) | Self::Output(_) | Self::Runtime(_) | Self::Status(_) => "system",
        }
    }
}

/// An error as it is printed.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    /// Stable word.
    pub(crate) code: &'a str,
    /// What happened and what to do.
    pub(crate) message: String,
    /// Of the answer that carried the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
}

impl Report<'_> {
    /// Writes it to stderr in the format asked for.
    pub(crate) fn print(&self, io: Io) {
        #[derive(Serialize)]
        struct Envelope<'a> {
            error: &'a Report<'a>,
        }
        if io.is_json()
            && let Ok(text) = serde_json::to_string(&Envelope { error: self })
        {
            io.note(&text);
        } else {
            io.error(&self.message);
        }
    }
}
