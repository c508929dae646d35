//! `task`: what became of a task, readable after its environment is gone.

use clap::{Args, Subcommand};
use fuse_client::Client;
use fuse_wire_api::Task;

use super::environment::logs::{self, Source, SourceArgs};
use crate::app::App;
use crate::error::Error as CliError;
use crate::{io, render};

/// `task …`.
#[derive(Debug, Subcommand)]
pub(crate) enum TaskCommand {
    /// Show a task: which environment, how it ended and why.
    #[command(after_help = "Example:\n  fuse task get hello")]
    Get(IdArgs),
    /// Print what a task printed, also when its environment is gone.
    Logs(LogsArgs),
}

/// `task logs`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  fuse task logs hello\n  fuse task logs hello --source console\n\n\
    Of the startup script standard output goes to standard output and errors to standard error; the \
    last 256 KiB of each are kept. With --phase they come together, in the order the script wrote \
    them. Console and guest agent are kept for 24 hours after a create failed."
)]
pub(crate) struct LogsArgs {
    /// Id of the task; the id of its environment works too.
    pub(crate) id: String,
    /// Which output.
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// A task by id.
#[derive(Debug, Args)]
pub(crate) struct IdArgs {
    /// Id of the task; the id of its environment works too.
    pub(crate) id: String,
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: TaskCommand) -> Result<(), CliError> {
    let client = app.client()?;
    match command {
        TaskCommand::Get(args) => {
            let task = find(app, &client, &args.id).await?;
            if app.io.is_json() {
                app.io.json(&task)?;
            } else {
                app.io.data(&render::task::block(&task))?;
            }
        }
        TaskCommand::Logs(args) => {
            let task = find(app, &client, &args.id).await?;
            if args.source.source == Source::Startup && args.source.phase.is_none() {
                return startup(app, &task);
            }
            let query = args.source.query(false);
            let stream = client.task_logs(&task.task_id, &query).await?;
            logs::print(app, stream).await?;
        }
    }
    Ok(())
}

fn startup(app: &App, task: &Task) -> Result<(), CliError> {
    let Some(output) = &task.output else {
        app.io.faint(&format!(
            "task {} has no output: it has no startup script, or that has not ended yet",
            task.task_id
        ));
        return Ok(());
    };
    if app.io.is_json() {
        return Ok(app.io.json(output)?);
    }
    io::raw_stdout(output.stdout.as_bytes())?;
    io::raw_stderr(output.stderr.as_bytes())?;
    Ok(())
}

/// Reads a task. People know environments, and an environment's id is its task's with a prefix, so
/// an unknown id is looked up without it; what was found is said.
async fn find(app: &App, client: &Client, id: &str) -> Result<Task, CliError> {
    let error = match client.task(id).await {
        Err(error) if error.is_not_found() => error,
        outcome => return Ok(outcome?),
    };
    if let Some(bare) = id.strip_prefix("fuse-")
        && let Ok(task) = client.task(bare).await
        && task.vm_id == id
    {
        app.io.note(&format!(
            "\"{id}\" is the environment of task {}",
            task.task_id
        ));
        return Ok(task);
    }
    Err(error.into())
}
