//! `snapshot`: what an environment's disk, or its whole state, was at a moment.

mod create;
mod list;

use clap::{Args, Subcommand};
use fuse_wire_api::Snapshot;

use super::{confirm, done};
use crate::app::App;
use crate::error::Error as CliError;
use crate::render;

pub(crate) use create::CreateArgs;
pub(crate) use list::ListArgs;

/// Why a snapshot command was refused before the API call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Not a state.
    #[error(
        "unknown state \"{state}\": --state takes creating, ready, restoring, deleting or error"
    )]
    UnknownState {
        /// As given.
        state: String,
    },
    /// Shape of a `key=value` flag.
    #[error("invalid --metadata \"{value}\": expected key=value (e.g. name=before-upgrade)")]
    MetadataShape {
        /// As given.
        value: String,
    },
    /// A time span that is none.
    #[error("--retention must not be negative: 0 keeps the snapshot forever")]
    Retention,
}

/// `snapshot …`.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot of a running environment.
    Create(CreateArgs),
    /// List snapshots, newest first.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  fuse snapshot list --vm-id fuse-hello --state ready"
    )]
    List(ListArgs),
    /// Show one snapshot.
    #[command(after_help = "Example:\n  fuse snapshot get snap-1768471200-0a1b2c")]
    Get(IdArgs),
    /// Delete a snapshot that no other one was taken on top of.
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  fuse snapshot delete snap-1768471200-0a1b2c --yes"
    )]
    Delete(ConfirmArgs),
    /// Put a snapshot in the place of its running environment.
    #[command(
        after_help = "Example:\n  fuse snapshot restore snap-1768471200-0a1b2c --yes\n\n\
        In place only: `fuse environment fork` makes a new environment of a snapshot."
    )]
    Restore(ConfirmArgs),
}

/// A snapshot by id.
#[derive(Debug, Args)]
pub(crate) struct IdArgs {
    /// Id of the snapshot.
    pub(crate) id: String,
}

/// A snapshot by id, and an answer to the question.
#[derive(Debug, Args)]
pub(crate) struct ConfirmArgs {
    /// Id of the snapshot.
    pub(crate) id: String,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: SnapshotCommand) -> Result<(), CliError> {
    match command {
        SnapshotCommand::Create(args) => create::run(app, args).await,
        SnapshotCommand::List(args) => list::run(app, args).await,
        SnapshotCommand::Get(args) => show(app, &app.client()?.snapshot(&args.id).await?),
        SnapshotCommand::Delete(args) => delete(app, args).await,
        SnapshotCommand::Restore(args) => restore(app, args).await,
    }
}

/// Prints one snapshot.
fn show(app: &App, snapshot: &Snapshot) -> Result<(), CliError> {
    if app.io.is_json() {
        app.io.json(snapshot)?;
        return Ok(());
    }
    app.io.data(&render::snapshot::block(snapshot))?;
    for line in render::snapshot::exports(snapshot) {
        app.io.note(&line);
    }
    Ok(())
}

async fn delete(app: &App, args: ConfirmArgs) -> Result<(), CliError> {
    let question = format!(
        "Delete snapshot {}? Its stored artifact goes with the record.",
        args.id
    );
    confirm(app, args.yes, &question)?;
    app.client()?.delete_snapshot(&args.id).await?;
    let line = format!("deleted snapshot {}", args.id);
    done(app, &args.id, "delete", &line)
}

async fn restore(app: &App, args: ConfirmArgs) -> Result<(), CliError> {
    let question = format!(
        "Restore snapshot {}? This overwrites the running VM that it was taken of.",
        args.id
    );
    confirm(app, args.yes, &question)?;
    app.client()?.restore_snapshot(&args.id).await?;
    let line = format!("restored snapshot {}", args.id);
    done(app, &args.id, "restore", &line)
}
