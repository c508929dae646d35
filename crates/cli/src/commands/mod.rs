//! The commands, one file per group, and what they share.

pub(crate) mod api_key;
pub(crate) mod build;
pub(crate) mod by_hand;
pub(crate) mod cache;
pub(crate) mod compile;
pub(crate) mod completion;
pub(crate) mod connect;
pub(crate) mod context;
pub(crate) mod dead_letters;
pub(crate) mod doctor;
pub(crate) mod environment;
pub(crate) mod flags;
pub(crate) mod fusefile;
pub(crate) mod healthy;
pub(crate) mod host;
pub(crate) mod init;
pub(crate) mod local;
pub(crate) mod man;
pub(crate) mod paging;
pub(crate) mod secrets;
pub(crate) mod snapshot;
pub(crate) mod status;
pub(crate) mod task;
pub(crate) mod token_file;
pub(crate) mod up;
pub(crate) mod validate;
pub(crate) mod version;

use serde::Serialize;

use crate::app::App;
use crate::args::Command;
use crate::error::Error;

/// Runs one command to its end.
pub(crate) async fn dispatch(app: &App, command: Command) -> Result<(), Error> {
    match command {
        Command::Connect(args) => connect::run(app, args).await,
        Command::Context { command } => context::run(app, command),
        Command::Hosts(args) => host::run_hosts(app, args).await,
        Command::Host(args) => host::run_host(app, args).await,
        Command::Environment { command } => environment::run(app, command).await,
        Command::Snapshot { command } => snapshot::run(app, command).await,
        Command::Task { command } => task::run(app, command).await,
        Command::Up(args) => up::run(app, *args).await,
        Command::Build(args) => build::run(app, *args).await,
        Command::Init(args) => init::run(app, &args),
        Command::Validate(args) => validate::run(app, &args),
        Command::Compile(args) => compile::run(app, &args),
        Command::DeadLetters(args) => dead_letters::run(app, &args).await,
        Command::Status(_) => status::run(app).await,
        Command::ApiKeys { command } => api_key::run(app, command).await,
        Command::Local { command } => local::run(app, command).await,
        Command::Doctor(args) => doctor::run(app, args).await,
        Command::Version(args) => version::run(app, args).await,
        Command::Completion(args) => completion::run(app, &args),
        Command::Man(args) => man::run(app, &args),
    }
}

/// Reports a change that was made: a success line, and in JSON mode what was done to what.
fn done(app: &App, id: &str, action: &str, line: &str) -> Result<(), Error> {
    #[derive(Serialize)]
    struct Done<'a> {
        id: &'a str,
        action: &'a str,
    }
    app.io.success(line);
    if app.io.is_json() {
        app.io.json(&Done { id, action })?;
    }
    Ok(())
}

/// Asks before something that cannot be undone. `--yes` answers for the user; without a terminal
/// there is nobody to ask.
fn confirm(app: &App, yes: bool, question: &str) -> Result<(), Error> {
    if yes {
        return Ok(());
    }
    if !app.io.can_ask() {
        return Err(Error::NotConfirmed {
            what: "this needs a confirmation and there is no terminal to ask on",
        });
    }
    if inquire::Confirm::new(question)
        .with_default(false)
        .prompt()?
    {
        Ok(())
    } else {
        Err(Error::NotConfirmed {
            what: "not confirmed, nothing was done",
        })
    }
}
