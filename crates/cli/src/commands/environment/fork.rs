//! `environment fork`.

use clap::Args;
use fuse_wire_api::ForkEnvironment;

use super::{find, show};
use crate::app::App;
use crate::commands::done;
use crate::error::Error as CliError;

/// `environment fork`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  fuse environment fork fuse-hello --comment experiment\n  \
    fuse environment fork fuse-hello --reuse-snapshot snap-1768471200-0a1b2c\n\n\
    The fork boots a copy of the source's disk, on the source's host, with an id, addresses and \
    guest credentials of its own. It goes nowhere else: a full host is overcommitted, unless \
    --require-capacity is given. Not for environments with GPUs."
)]
pub(crate) struct ForkArgs {
    /// Id of the environment; a task id works too.
    pub(crate) id: String,
    /// Start from this snapshot of it instead of a fresh one.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "SNAPSHOT"
    )]
    pub(crate) reuse_snapshot: String,
    /// What the fresh snapshot is for.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TEXT"
    )]
    pub(crate) comment: String,
    /// Fail when the host has no room for it.
    #[arg(long)]
    pub(crate) require_capacity: bool,
}

/// Forks.
pub(crate) async fn run(app: &App, args: ForkArgs) -> Result<(), CliError> {
    let client = app.client()?;
    let source = find(app, &client, &args.id).await?.id;
    if !args.comment.is_empty() && !args.reuse_snapshot.is_empty() {
        app.io
            .warn("--comment is for a fresh snapshot; the one that is reused keeps its own");
    }
    let request = ForkEnvironment {
        reuse_snapshot_id: args.reuse_snapshot,
        comment: args.comment,
        require_capacity: args.require_capacity,
    };
    let Some(fork) = client.fork(&source, &request).await? else {
        let line = format!("forked environment {source}; the fork is gone already");
        return done(app, &source, "fork", &line);
    };
    app.io
        .success(&format!("forked environment {source} into {}", fork.id));
    for warning in &fork.warnings {
        app.io.warn(warning);
    }
    show(app, &fork)
}
