//! `environment logs` and `task logs`: what was printed, as it was printed.

use clap::{Args, ValueEnum};
use fuse_client::LogStream;
use fuse_wire_api::LogQuery;
use serde::Serialize;

use super::find;
use crate::app::App;
use crate::error::Error as CliError;
use crate::{io, wait};

/// Which output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// Of the startup script.
    #[default]
    Startup,
    /// Of the guest's serial console.
    Console,
    /// Of the guest agent.
    Agent,
}

/// Which part of the startup script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    /// The build steps.
    Build,
    /// What follows them.
    Run,
}

/// What `logs` of environments and of tasks have in common.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// Which output.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) source: Source,
    /// Of the startup script, only this part.
    #[arg(long, value_enum)]
    pub(crate) phase: Option<Phase>,
}

impl SourceArgs {
    /// The query that asks for it.
    pub(crate) fn query(&self, follow: bool) -> LogQuery {
        let source = match self.source {
            Source::Startup => "startup",
            Source::Console => "console",
            Source::Agent => "agent",
        };
        let phase = match self.phase {
            None => "",
            Some(Phase::Build) => "build",
            Some(Phase::Run) => "run",
        };
        LogQuery {
            source: source.to_owned(),
            phase: phase.to_owned(),
            follow,
        }
    }
}

/// `environment logs`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse environment logs fuse-hello\n  \
    fuse environment logs -f --source console fuse-hello\n\n\
    The last 256 KiB of each output are kept, of the startup script that much of the build steps and \
    of the rest. -f goes on until the script, or the VM, has ended. Of an environment that is gone \
    `fuse task logs` knows more.")]
pub(crate) struct LogsArgs {
    /// Id of the environment; a task id works too.
    pub(crate) id: String,
    /// Go on with what comes.
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Which output.
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Prints an output of an environment.
pub(super) async fn run(app: &App, args: &LogsArgs) -> Result<(), CliError> {
    let client = app.client()?;
    let query = args.source.query(args.follow);
    let stream = match client.environment_logs(&args.id, &query).await {
        Err(error) if error.is_not_found() => {
            let environment = find(app, &client, &args.id).await?;
            client.environment_logs(&environment.id, &query).await
        }
        outcome => outcome,
    };
    print(app, stream?).await
}

/// A piece of an output for programs.
#[derive(Debug, Serialize)]
struct Piece<'a> {
    text: &'a str,
}

/// Copies an output to stdout: bytes, or one JSON object per piece.
pub(crate) async fn print(app: &App, mut stream: LogStream) -> Result<(), CliError> {
    let copying = async {
        // The begin of a character whose rest comes with the next piece.
        let mut held = Vec::new();
        while let Some(bytes) = stream.next().await? {
            if !app.io.is_json() {
                io::raw_stdout(&bytes)?;
                continue;
            }
            held.extend_from_slice(&bytes);
            let whole = match std::str::from_utf8(&held) {
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                _ => held.len(),
            };
            let text: Vec<u8> = held.drain(..whole).collect();
            if !text.is_empty() {
                let text = String::from_utf8_lossy(&text);
                app.io.json_line(&Piece { text: &text })?;
            }
        }
        Ok::<_, CliError>(())
    };
    match wait::interruptible(copying).await? {
        Some(outcome) => outcome,
        None => Err(CliError::Status(130)),
    }
}
