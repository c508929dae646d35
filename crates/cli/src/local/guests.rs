//! The environments of a stack that comes up again: waiting until they answer.

use std::time::{Duration, Instant};

use fuse_client::Client;
use fuse_wire_api::{Environment, ExecRequest, ListEnvironments};

use super::Error;
use crate::io::Io;

/// How long all of them together may take.
const BACK_WITHIN: Duration = Duration::from_secs(180);
/// Limit of one question (milliseconds).
const ASK_LIMIT_MS: i64 = 5_000;
/// Pause between two questions to a guest that does not answer yet.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Waits until every environment that should run answers a command. One that does not in time is a
/// warning: the stack is up, and the environment says by itself what is wrong with it.
///
/// # Errors
/// When the environments cannot be listed.
pub(super) async fn wait_until_back(client: &Client, io: Io) -> Result<(), Error> {
    let query = ListEnvironments {
        state: "running".to_owned(),
        ..ListEnvironments::default()
    };
    let environments = client.environments(&query).await?.environments;
    if environments.is_empty() {
        return Ok(());
    }
    let noun = if environments.len() == 1 {
        "environment"
    } else {
        "environments"
    };
    io.note(&format!(
        "waiting for {} {noun} to boot again",
        environments.len()
    ));
    let deadline = Instant::now() + BACK_WITHIN;
    for environment in &environments {
        if !is_back(client, environment, deadline).await {
            io.warn(&format!(
                "environment {} does not answer yet",
                environment.id
            ));
        }
    }
    Ok(())
}

async fn is_back(client: &Client, environment: &Environment, deadline: Instant) -> bool {
    let question = ExecRequest {
        shell: ":".to_owned(),
        timeout_ms: ASK_LIMIT_MS,
        ..ExecRequest::default()
    };
    loop {
        match client.exec(&environment.id, &question).await {
            Ok(_) => return true,
            // Destroyed meanwhile: nobody waits for it.
            Err(error) if error.is_not_found() => return true,
            Err(_) if Instant::now() < deadline => tokio::time::sleep(ASK_EVERY).await,
            Err(_) => return false,
        }
    }
}
