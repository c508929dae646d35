//! `environment drain`.

use clap::Args;
use fuse_client::Client;
use fuse_wire_api::Environment;

use super::{find, show};
use crate::app::App;
use crate::commands::done;
use crate::error::Error as CliError;

/// `environment drain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse environment drain fuse-hello\n  \
    fuse environment drain fuse-hello --then-destroy\n\n\
    Only a running environment can be drained, and there is no way back: it stays draining, with \
    its share of the host, until it is destroyed.")]
pub(crate) struct DrainArgs {
    /// Id of the environment; a task id works too.
    pub(crate) id: String,
    /// Destroy it once the workload has stopped; not when the drain command fails.
    #[arg(long)]
    pub(crate) then_destroy: bool,
}

/// Drains.
pub(crate) async fn run(app: &App, args: DrainArgs) -> Result<(), CliError> {
    let client = app.client()?;
    let id = find(app, &client, &args.id).await?.id;
    let drained = match client.drain(&id).await {
        Ok(drained) => drained,
        Err(error) => {
            say_how_to_go_on(app, &client, &id).await;
            return Err(error.into());
        }
    };
    app.io.success(&format!("drained environment {id}"));
    if args.then_destroy {
        match client.destroy(&id).await {
            Err(error) if error.is_not_found() => {}
            outcome => outcome?,
        }
        return done(app, &id, "drain", &format!("destroyed environment {id}"));
    }
    let Some(environment) = drained else {
        return done(app, &id, "drain", &format!("environment {id} is gone"));
    };
    say_it_still_exists(app, &environment);
    show(app, &environment)
}

fn say_it_still_exists(app: &App, environment: &Environment) {
    app.io.note(&format!(
        "draining does not destroy: `fuse environment destroy {}` does",
        environment.id
    ));
}

/// A failed drain command leaves the environment draining; a refused drain does not.
async fn say_how_to_go_on(app: &App, client: &Client, id: &str) {
    if let Ok(environment) = client.environment(id).await
        && environment.state == "draining"
        && !environment.error.is_empty()
    {
        app.io.note(&format!(
            "environment {id} stays draining; `fuse environment destroy {id}` ends it"
        ));
    }
}
