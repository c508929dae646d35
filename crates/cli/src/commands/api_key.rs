//! `apikeys`: keys that let applications in. All of it needs the master token.

use clap::{Args, Subcommand, ValueEnum};
use fuse_wire_api::CreateApiKey;

use super::{confirm, done};
use crate::app::App;
use crate::error::Error as CliError;
use crate::render;
use crate::render::table::table;

/// `apikeys …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ApiKeyCommand {
    /// Make a key; it is shown once.
    #[command(
        after_help = "Examples:\n  fuse apikeys create --label ci\n  fuse apikeys create --label agent --scope exec"
    )]
    Create(CreateArgs),
    /// List the keys, revoked ones included.
    #[command(visible_alias = "ls", after_help = "Example:\n  fuse apikeys list")]
    List,
    /// Take the rights of a key away, for good.
    #[command(after_help = "Example:\n  fuse apikeys revoke ak_0123456789abcdef --yes")]
    Revoke(RevokeArgs),
}

/// `apikeys create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// What the key is for.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TEXT"
    )]
    pub(crate) label: String,
    /// A right beyond those of every key; repeatable.
    #[arg(long, value_enum)]
    pub(crate) scope: Vec<Scope>,
}

/// A right that not every key has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scope {
    /// Run commands in guests.
    Exec,
    /// Open terminals in guests.
    Attach,
}

impl Scope {
    fn as_str(self) -> &'static str {
        match self {
            Self::Exec => fuse_wire_api::Scope::Exec.as_str(),
            Self::Attach => fuse_wire_api::Scope::Attach.as_str(),
        }
    }
}

/// `apikeys revoke`.
#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// Id of the key, as listed.
    pub(crate) id: String,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: ApiKeyCommand) -> Result<(), CliError> {
    match command {
        ApiKeyCommand::Create(args) => create(app, args).await,
        ApiKeyCommand::List => list(app).await,
        ApiKeyCommand::Revoke(args) => revoke(app, &args).await,
    }
}

async fn create(app: &App, args: CreateArgs) -> Result<(), CliError> {
    let request = CreateApiKey {
        label: args.label,
        scopes: args.scope.iter().map(|s| s.as_str().to_owned()).collect(),
    };
    let created = app.client()?.create_api_key(&request).await?;
    // Before the key, so that nobody scrolls past it.
    app.io
        .warn("the key is shown this once and cannot be read again; keep it now");
    if app.io.is_json() {
        return Ok(app.io.json(&created)?);
    }
    Ok(app.io.data(&render::api_key::block(&created))?)
}

async fn list(app: &App) -> Result<(), CliError> {
    let keys = app.client()?.api_keys().await?.api_keys;
    if app.io.is_json() {
        return Ok(app.io.json(&keys)?);
    }
    if keys.is_empty() {
        app.io.faint("no results");
        return Ok(());
    }
    let rows: Vec<_> = keys.iter().map(render::api_key::row).collect();
    Ok(app.io.data(&table(&render::api_key::HEADER, rows))?)
}

async fn revoke(app: &App, args: &RevokeArgs) -> Result<(), CliError> {
    let question = format!("Revoke API key {}? Whoever uses it is locked out.", args.id);
    confirm(app, args.yes, &question)?;
    app.client()?.revoke_api_key(&args.id).await?;
    done(
        app,
        &args.id,
        "revoke",
        &format!("revoked API key {}", args.id),
    )
}
