//! `environment migrate`.

use clap::Args;
use fuse_wire_api::MigrateEnvironment;

use super::{find, show};
use crate::app::App;
use crate::error::Error as CliError;
use crate::wait;

/// `environment migrate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse environment migrate fuse-hello\n  \
    fuse environment migrate fuse-hello --to prod-east-2\n\n\
    Its workload is asked to stop, its disk is copied and booted on the other host, and that one \
    takes its place: task, secrets, published ports and age stay, the environment's id and its \
    addresses change. The startup script does not run again. Whatever fails before, it goes on \
    where it is. Not for environments with GPUs.")]
pub(crate) struct MigrateArgs {
    /// Id of the environment; a task id works too.
    pub(crate) id: String,
    /// Host to move it to [default: the orchestrator chooses].
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "HOST"
    )]
    pub(crate) to: String,
    /// Move its memory, too, so that nothing in it is restarted; refused where no host can.
    #[arg(long)]
    pub(crate) live: bool,
    /// Go on at the target before all memory is there; needs --live.
    #[arg(long, requires = "live")]
    pub(crate) lazy: bool,
}

/// Moves and waits.
pub(crate) async fn run(app: &App, args: MigrateArgs) -> Result<(), CliError> {
    let client = app.client()?;
    let source = find(app, &client, &args.id).await?;
    let to = match args.to.as_str() {
        "" => "another host".to_owned(),
        host => format!("host {host}"),
    };
    let id = source.id;
    app.io.note(&format!(
        "moving environment {id} from host {} to {to}",
        source.host_id
    ));
    let request = MigrateEnvironment {
        target_host_id: args.to,
        live: args.live,
        lazy: args.lazy,
    };
    let moving = client.migrate(&id, &request);
    let Some(moved) = wait::interruptible(moving).await? else {
        app.io.warn(&format!(
            "the move of environment {id} goes on without this command; `fuse environment get {id}` \
             shows where it is"
        ));
        return Err(CliError::Status(130));
    };
    let moved = moved?;
    app.io.success(&format!(
        "moved environment {id} to host {}: it is {} now",
        moved.host_id, moved.id
    ));
    show(app, &moved)
}
