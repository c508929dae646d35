//! `environment`: create, look at, run commands in, drain, destroy.

mod create;
mod drain;
mod exec;
mod explain;
mod fork;
mod list;
pub(crate) mod logs;
mod migrate;
mod rotate;
mod shell;

use clap::{Args, Subcommand};
use fuse_client::Client;
use fuse_wire_api::{Environment, ListEnvironments};

use super::{confirm, done};
use crate::app::App;
use crate::error::Error as CliError;
use crate::render;
use crate::wait::{self, End, Signals, Until, View};

pub(crate) use create::CreateArgs;
pub(crate) use drain::DrainArgs;
pub(crate) use exec::ExecArgs;
pub(crate) use fork::ForkArgs;
pub(crate) use list::ListArgs;
pub(crate) use logs::LogsArgs;
pub(crate) use migrate::MigrateArgs;
pub(crate) use shell::ShellArgs;

/// Why an environment command was refused before the API call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A create needs a task id.
    #[error("--task-id is required: the environment's id is made of it")]
    TaskIdMissing,
    /// These are seen on the event stream only.
    #[error(
        "no listed environment is ever {state}: its record is gone by then. the event stream shows \
         it (`fuse environment watch <id>`); --state takes provisioning, running, draining or destroying"
    )]
    StreamOnlyState {
        /// As given.
        state: String,
    },
    /// Not a state.
    #[error(
        "unknown state \"{state}\": --state takes provisioning, running, draining or destroying"
    )]
    UnknownState {
        /// As given.
        state: String,
    },
    /// Shape of a `key=value` flag.
    #[error("invalid --label \"{value}\": expected key=value (e.g. disk=nvme)")]
    LabelShape {
        /// As given.
        value: String,
    },
    /// A file named by `@path` cannot be read.
    #[error("could not read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A healthcheck that is none.
    #[error(
        "invalid --healthcheck: {reason}; expected the JSON of the API, such as \
        {{\"http\":{{\"port\":8080,\"path\":\"/\"}}}} or {{\"exec\":[\"pg_isready\"]}}"
    )]
    Healthcheck {
        /// What is wrong.
        reason: String,
    },
    /// A rule of the API, found without asking.
    #[error("invalid argument: {0}")]
    Rule(fuse_wire_api::Violation),
    /// Nothing to run.
    #[error("nothing to run: give a command after --, or a line with --shell")]
    CommandMissing,
    /// Two things to run.
    #[error("--shell and a command after -- exclude each other")]
    CommandAndShell,
    /// A shell needs somebody at a terminal.
    #[error(
        "a shell needs a terminal on stdin and stdout; use `fuse environment exec` for commands without one"
    )]
    NoTerminal,
    /// The terminal cannot be used.
    #[error("could not use the terminal: {0}")]
    Terminal(#[source] std::io::Error),
    /// A session ended without the command's exit status.
    #[error("the session ended before its command did: {reason}")]
    SessionLost {
        /// What is known of why.
        reason: String,
    },
    /// A command ended without its exit status.
    #[error("it is not known how the command ended, its connection was lost: {reason}")]
    CommandLost {
        /// What is known of why.
        reason: String,
    },
    /// Our own input cannot be read.
    #[error("could not read the input: {0}")]
    Input(#[source] std::io::Error),
    /// One object at the end has no place for a conversation.
    #[error("--interactive shows output as it comes and excludes -o json")]
    InputWithJson,
    /// A duration that is not one.
    #[error("invalid --timeout \"{value}\": expected a duration such as 90s, 10m or 1m30s")]
    Timeout {
        /// As given.
        value: String,
    },
}

/// `environment …`.
#[derive(Debug, Subcommand)]
pub(crate) enum EnvironmentCommand {
    /// List environments.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  fuse environment list --state running --all"
    )]
    List(ListArgs),
    /// Show one environment.
    #[command(after_help = "Example:\n  fuse environment get fuse-hello")]
    Get(IdArgs),
    /// Create an environment from a raw resource spec.
    Create(Box<CreateArgs>),
    /// Run a command in a guest (master token); its exit status is this command's.
    Exec(ExecArgs),
    /// A shell, or any command with a terminal, in a guest (master token).
    Shell(ShellArgs),
    /// Print what an environment prints: its startup script, its console, its guest agent.
    Logs(LogsArgs),
    /// Destroy an environment, from any state.
    #[command(
        visible_aliases = ["rm", "delete"],
        after_help = "Example:\n  fuse environment destroy fuse-hello --yes"
    )]
    Destroy(DestroyArgs),
    /// Ask the workload of a running environment to stop; nothing is destroyed.
    Drain(DrainArgs),
    /// Make a new environment of a copy of a running one's disk.
    Fork(ForkArgs),
    /// Move a running environment to another host, with its disk.
    Migrate(MigrateArgs),
    /// Give the guest agent new credentials, in force at once; the VM keeps running.
    #[command(
        name = "rotate-token",
        after_help = "Example:\n  fuse environment rotate-token fuse-hello\n\n\
        The environment must run, and the orchestrator needs a TOKEN_ENCRYPTION_KEY."
    )]
    RotateToken(IdArgs),
    /// Show state transitions as they happen, until the environment is gone.
    #[command(
        visible_alias = "follow",
        after_help = "Example:\n  fuse environment watch fuse-hello -o json"
    )]
    Watch(WatchArgs),
}

/// An environment by id.
#[derive(Debug, Args)]
pub(crate) struct IdArgs {
    /// Id of the environment; a task id works too.
    pub(crate) id: String,
}

/// `environment destroy`.
#[derive(Debug, Args)]
pub(crate) struct DestroyArgs {
    /// Id of the environment; a task id works too.
    pub(crate) id: String,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
    /// An environment that does not exist is a success.
    #[arg(long)]
    pub(crate) ignore_missing: bool,
}

/// `environment watch`.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Id of the environment; a task id works too.
    pub(crate) id: String,
    /// Exit with status 1 when it failed.
    #[arg(long)]
    pub(crate) exit_status: bool,
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: EnvironmentCommand) -> Result<(), CliError> {
    match command {
        EnvironmentCommand::List(args) => list::run(app, args).await,
        EnvironmentCommand::Get(args) => {
            let environment = find(app, &app.client()?, &args.id).await?;
            show(app, &environment)
        }
        EnvironmentCommand::Create(args) => create::run(app, *args).await,
        EnvironmentCommand::Exec(args) => exec::run(app, args).await,
        EnvironmentCommand::Shell(args) => shell::run(app, args).await,
        EnvironmentCommand::Logs(args) => logs::run(app, &args).await,
        EnvironmentCommand::Destroy(args) => destroy(app, args).await,
        EnvironmentCommand::Drain(args) => drain::run(app, args).await,
        EnvironmentCommand::Fork(args) => fork::run(app, args).await,
        EnvironmentCommand::Migrate(args) => migrate::run(app, args).await,
        EnvironmentCommand::RotateToken(args) => rotate::run(app, &args.id).await,
        EnvironmentCommand::Watch(args) => watch(app, &args).await,
    }
}

/// Prints one environment.
pub(crate) fn show(app: &App, environment: &Environment) -> Result<(), CliError> {
    if app.io.is_json() {
        app.io.json(environment)?;
    } else {
        app.io.data(&render::environment::block(environment))?;
    }
    Ok(())
}

/// Reads an environment by id. People know task ids, and an environment's id is the task's with a
/// prefix, so an unknown id is looked up as a task id; what was found is said.
async fn find(app: &App, client: &Client, id: &str) -> Result<Environment, CliError> {
    match client.environment(id).await {
        Ok(environment) => Ok(environment),
        Err(error) if error.is_not_found() => match by_task(client, id).await? {
            Some(environment) => {
                app.io.note(&format!(
                    "\"{id}\" is the task of environment {}",
                    environment.id
                ));
                Ok(environment)
            }
            None => match moved(client, id).await? {
                Some(environment) => {
                    app.io.note(&format!(
                        "environment {id} was moved: it is {} on host {} now",
                        environment.id, environment.host_id
                    ));
                    Ok(environment)
                }
                None => {
                    say_what_became_of_it(app, client, id).await;
                    Err(error.into())
                }
            },
        },
        Err(error) => Err(error.into()),
    }
}

/// Makes a call about an environment, by its id or its task's.
async fn of_environment<T>(
    app: &App,
    client: &Client,
    id: &str,
    call: impl AsyncFn(&str) -> Result<T, fuse_client::Error>,
) -> Result<T, CliError> {
    match call(id).await {
        Err(error) if error.is_not_found() => {
            let environment = find(app, client, id).await?;
            if environment.id == id {
                return Err(error.into());
            }
            Ok(call(&environment.id).await?)
        }
        outcome => Ok(outcome?),
    }
}

/// What took the place of an environment that was moved to another host: it has its task.
async fn moved(client: &Client, id: &str) -> Result<Option<Environment>, CliError> {
    // The usual prefix of an environment's id; a fleet with another one gets no hint.
    match id.strip_prefix("fuse-") {
        Some(task) => by_task(client, task).await,
        None => Ok(None),
    }
}

/// The record of an environment goes when it ends; the one of its task stays and knows why.
async fn say_what_became_of_it(app: &App, client: &Client, id: &str) {
    // The usual prefix of an environment's id; a fleet with another one gets no hint.
    let bare = id.strip_prefix("fuse-").unwrap_or(id);
    for task_id in [id, bare] {
        if let Ok(task) = client.task(task_id).await
            && (task.vm_id == id || task.task_id == id)
        {
            let why = match task.last_error.as_str() {
                "" => String::new(),
                error => format!(": {error}"),
            };
            app.io.note(&format!(
                "environment {} is gone; its task {} {}{why}",
                task.vm_id,
                task.task_id,
                if task.run_status == "failed" {
                    "failed"
                } else {
                    "is over"
                }
            ));
            return;
        }
    }
}

/// The environment of a task, if there is exactly one.
async fn by_task(client: &Client, task_id: &str) -> Result<Option<Environment>, CliError> {
    let query = ListEnvironments {
        task_id: task_id.to_owned(),
        ..ListEnvironments::default()
    };
    let mut found = client.environments(&query).await?.environments;
    Ok(if found.len() == 1 { found.pop() } else { None })
}

async fn destroy(app: &App, args: DestroyArgs) -> Result<(), CliError> {
    let question = format!("Destroy environment {} and everything in it?", args.id);
    confirm(app, args.yes, &question)?;
    let client = app.client()?;
    let id = match find(app, &client, &args.id).await {
        Ok(environment) => environment.id,
        Err(CliError::Client(error)) if args.ignore_missing && error.is_not_found() => {
            let line = format!("environment {} is gone already", args.id);
            return done(app, &args.id, "destroy", &line);
        }
        Err(error) => return Err(error),
    };
    match client.destroy(&id).await {
        Err(error) if args.ignore_missing && error.is_not_found() => {}
        outcome => outcome?,
    }
    done(app, &id, "destroy", &format!("destroyed environment {id}"))
}

async fn watch(app: &App, args: &WatchArgs) -> Result<(), CliError> {
    let client = app.client()?;
    let (id, mut events) = match client.events(&args.id).await {
        Ok(events) => (args.id.clone(), events),
        Err(error) if error.is_not_found() => {
            let environment = find(app, &client, &args.id).await?;
            let events = client.events(&environment.id).await?;
            (environment.id, events)
        }
        Err(error) => return Err(error.into()),
    };
    let mut view = View::of_events(app.io, &id);
    let mut signals = Signals::new()?;
    match wait::follow(&mut events, Until::Terminal, &mut view, &mut signals).await? {
        End::Reached(event) if args.exit_status && event.state == "failed" => {
            Err(CliError::Status(1))
        }
        // The record is gone: destroyed or failed, but the last event was not seen.
        End::Reached(_) | End::Ended(_) | End::Left => Ok(()),
        End::Interrupted => Err(CliError::Status(130)),
    }
}
