//! `--wait-healthy`: the environment is ready when its own probe says so.

use std::time::Duration;

use fuse_client::Client;
use fuse_fusefile::Compiled;
use tokio::time::{Instant, interval, timeout_at};

use super::{Error, UpArgs};
use crate::app::App;
use crate::commands::flags;
use crate::error::Error as CliError;
use crate::render;
use crate::wait;

/// How often the verdict is read: it is part of the record, no event tells of it.
const PERIOD: Duration = Duration::from_secs(2);

/// The wish to wait, checked before anything is sent.
#[derive(Debug)]
pub(super) struct Gate {
    limit: Duration,
    shown: String,
}

impl Gate {
    /// The gate that was asked for, if one was.
    pub(super) fn of(args: &UpArgs, compiled: &Compiled) -> Result<Option<Self>, Error> {
        if !args.wait_healthy {
            return Ok(None);
        }
        if compiled.healthcheck.is_none() {
            return Err(Error::NoHealthcheck);
        }
        let limit = flags::duration(&args.health_timeout)
            .and_then(|limit| Duration::try_from(limit).ok())
            .ok_or_else(|| Error::HealthTimeout {
                value: args.health_timeout.clone(),
            })?;
        Ok(Some(Self {
            limit,
            shown: args.health_timeout.clone(),
        }))
    }

    /// Waits for `passing`. `failing` on the way is no failure: a slow start looks like that.
    pub(super) async fn wait(&self, app: &App, client: &Client, id: &str) -> Result<(), CliError> {
        app.io.note(&format!(
            "waiting for the healthcheck, at most {}",
            self.shown
        ));
        let mut last = String::new();
        let deadline = Instant::now() + self.limit;
        let passed = wait::interruptible(timeout_at(
            deadline,
            until_passing(app, client, id, &mut last),
        ))
        .await?;
        match passed {
            Some(Ok(outcome)) => outcome,
            Some(Err(_deadline)) => Err(Error::NotHealthy {
                id: id.to_owned(),
                limit: self.shown.clone(),
                last,
            }
            .into()),
            None => {
                app.io.note(&format!("interrupted; environment {id} runs"));
                Err(CliError::Status(130))
            }
        }
    }
}

async fn until_passing(
    app: &App,
    client: &Client,
    id: &str,
    last: &mut String,
) -> Result<(), CliError> {
    let mut ticks = interval(PERIOD);
    loop {
        ticks.tick().await;
        let Some(health) = client.environment(id).await?.health else {
            continue;
        };
        let verdict = render::environment::verdict(&health);
        if health.state == "passing" {
            app.io.success("healthy");
            return Ok(());
        }
        if *last != verdict {
            app.io.note(&format!("health: {verdict}"));
            *last = verdict;
        }
    }
}
