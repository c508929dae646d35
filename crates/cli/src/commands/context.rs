//! `context`: the orchestrators this machine knows. Offline; tokens are never printed.

use clap::{Args, Subcommand};
use fuse_client::BaseUrlError;
use serde::Serialize;

use super::done;
use crate::app::App;
use crate::config;
use crate::error::Error as CliError;
use crate::render::block::Block;
use crate::render::or_dash;
use crate::render::table::{mark, table, text};

/// Why there is no context to work with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nothing is connected, or nothing is selected.
    #[error(
        "no orchestrator selected: connect one with `fuse connect <url> --token <token>`, \
         pick a known one with `fuse context use <name>`, or start one here with `fuse local up`"
    )]
    None,
    /// The name is not in the configuration.
    #[error("unknown context \"{name}\": `fuse context list` shows the known ones")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The configuration was edited by hand.
    #[error("context \"{name}\" has an unusable base_url: {source}")]
    BadUrl {
        /// The context.
        name: String,
        /// What is wrong with it.
        source: BaseUrlError,
    },
}

/// `context …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// List the known contexts.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  fuse context list -o json"
    )]
    List,
    /// Make a context the current one.
    #[command(after_help = "Example:\n  fuse context use prod")]
    Use(NameArgs),
    /// Forget a context, its token included.
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  fuse context remove staging"
    )]
    Remove(NameArgs),
    /// Show the current context.
    #[command(after_help = "Example:\n  fuse context current")]
    Current,
}

/// A context by name.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// Name of the context.
    pub(crate) name: String,
}

/// One context, as JSON shows it.
#[derive(Debug, Serialize)]
struct Item<'a> {
    name: &'a str,
    base_url: &'a str,
    master: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    active_host: Option<&'a str>,
    current: bool,
}

/// Runs one of them.
pub(crate) fn run(app: &App, command: ContextCommand) -> Result<(), CliError> {
    match command {
        ContextCommand::List => list(app),
        ContextCommand::Use(args) => select(app, &args.name),
        ContextCommand::Remove(args) => remove(app, &args.name),
        ContextCommand::Current => current(app),
    }
}

fn item<'a>(app: &App, context: &'a config::Context) -> Item<'a> {
    Item {
        name: &context.name,
        base_url: &context.base_url,
        master: context.master,
        active_host: context.active_host.as_deref(),
        current: app.config.current_context.as_deref() == Some(context.name.as_str()),
    }
}

fn list(app: &App) -> Result<(), CliError> {
    let items: Vec<_> = app
        .config
        .contexts
        .iter()
        .map(|context| item(app, context))
        .collect();
    if app.io.is_json() {
        return Ok(app.io.json(&items)?);
    }
    if items.is_empty() {
        app.io.faint("no results");
        return Ok(());
    }
    let rows: Vec<_> = items
        .iter()
        .map(|item| {
            vec![
                mark(item.current),
                text(item.name),
                text(item.base_url),
                text(if item.master { "yes" } else { "" }),
                text(item.active_host.unwrap_or_default()),
            ]
        })
        .collect();
    Ok(app.io.data(&table(
        &["", "NAME", "BASE URL", "MASTER", "ACTIVE HOST"],
        rows,
    ))?)
}

fn select(app: &App, name: &str) -> Result<(), CliError> {
    let known = app.file.update(|config| {
        let known = config.context(name).is_some();
        if known {
            config.current_context = Some(name.to_owned());
        }
        known
    })?;
    if !known {
        return Err(Error::Unknown {
            name: name.to_owned(),
        }
        .into());
    }
    done(app, name, "use", &format!("using context \"{name}\""))
}

fn remove(app: &App, name: &str) -> Result<(), CliError> {
    if !app.file.update(|config| config.remove(name))? {
        return Err(Error::Unknown {
            name: name.to_owned(),
        }
        .into());
    }
    done(app, name, "remove", &format!("removed context \"{name}\""))
}

fn current(app: &App) -> Result<(), CliError> {
    let context = app.context()?;
    if app.io.is_json() {
        return Ok(app.io.json(&item(app, context))?);
    }
    let mut block = Block::new();
    block
        .row("name", context.name.as_str())
        .row("base url", context.base_url.as_str())
        .row("master", context.master.to_string())
        .row(
            "active host",
            or_dash(context.active_host.as_deref().unwrap_or_default()),
        )
        .row("config", app.file.path().display().to_string());
    Ok(app.io.data(&block.render())?)
}
