//! `environment rotate-token`.

use super::find;
use crate::app::App;
use crate::commands::done;
use crate::error::Error as CliError;

/// Rotates.
pub(crate) async fn run(app: &App, id: &str) -> Result<(), CliError> {
    let client = app.client()?;
    let id = find(app, &client, id).await?.id;
    client.rotate_token(&id).await?;
    let line = format!("rotated the guest credentials of environment {id}");
    done(app, &id, "rotate-token", &line)
}
