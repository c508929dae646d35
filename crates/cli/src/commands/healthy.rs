//! `--wait-healthy`: the environment is ready when its own probe says so.

use std::time::Duration;

use clap::Args;
use fuse_client::Client;
use tokio::time::{Instant, interval, timeout_at};

use crate::app::App;
use crate::commands::flags;
use crate::error::Error as CliError;
use crate::render;
use crate::wait::{self, Standing};

/// How often the verdict is read: it is part of the record, no event tells of it.
const PERIOD: Duration = Duration::from_secs(2);

/// Why an environment does not count as healthy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// `--wait-healthy` without anything to wait for.
    #[error("--wait-healthy waits for the verdict of the healthcheck, and {what}")]
    NoHealthcheck {
        /// What has none.
        what: &'static str,
    },
    /// A duration that is not one.
    #[error("invalid --health-timeout \"{value}\": expected a duration such as 90s or 5m")]
    Timeout {
        /// As given.
        value: String,
    },
    /// The verdict did not come.
    #[error(
        "environment {id} runs, but was not healthy within {limit}{}; it is still there: \
         `fuse environment get {id}` shows its verdict",
        seen(last)
    )]
    NotHealthy {
        /// The environment.
        id: String,
        /// The bound, as given.
        limit: String,
        /// The last verdict with its message, possibly nothing.
        last: String,
    },
}

impl Error {
    /// The stable word for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::NoHealthcheck { .. } | Self::Timeout { .. } => "invalid_argument",
            Self::NotHealthy { .. } => "not_healthy",
        }
    }
}

fn seen(last: &str) -> String {
    match last {
        "" => ", and had no verdict".to_owned(),
        last => format!(", last verdict: {last}"),
    }
}

/// The flags of it.
#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Wait until the healthcheck passes.
    #[arg(long)]
    pub(crate) wait_healthy: bool,
    /// How long to wait for that.
    #[arg(long, default_value = "2m", value_name = "DURATION")]
    pub(crate) health_timeout: String,
}

/// The wish to wait, checked before anything is sent.
#[derive(Debug)]
pub(crate) struct Gate {
    limit: Duration,
    shown: String,
}

impl Gate {
    /// The gate that was asked for, if one was. `missing` is why there is no healthcheck, if there
    /// is none.
    pub(crate) fn of(
        args: &HealthArgs,
        missing: Option<&'static str>,
    ) -> Result<Option<Self>, Error> {
        if !args.wait_healthy {
            return Ok(None);
        }
        if let Some(what) = missing {
            return Err(Error::NoHealthcheck { what });
        }
        let limit = flags::duration(&args.health_timeout)
            .and_then(|limit| Duration::try_from(limit).ok())
            .ok_or_else(|| Error::Timeout {
                value: args.health_timeout.clone(),
            })?;
        Ok(Some(Self {
            limit,
            shown: args.health_timeout.clone(),
        }))
    }

    /// Waits for `passing`. `failing` on the way is no failure: a slow start looks like that.
    pub(crate) async fn wait(&self, app: &App, client: &Client, id: &str) -> Result<(), CliError> {
        let what = format!("waiting for the healthcheck, at most {}", self.shown);
        let mut standing = Standing::of(app.io, &what);
        let mut last = String::new();
        let deadline = Instant::now() + self.limit;
        let passing = until_passing(client, id, &mut standing, &mut last);
        let passed = wait::interruptible(timeout_at(deadline, passing)).await?;
        drop(standing);
        match passed {
            Some(Ok(outcome)) => {
                outcome?;
                app.io.success("healthy");
                Ok(())
            }
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
    client: &Client,
    id: &str,
    standing: &mut Standing,
    last: &mut String,
) -> Result<(), CliError> {
    let mut ticks = interval(PERIOD);
    loop {
        ticks.tick().await;
        let Some(health) = client.environment(id).await?.health else {
            continue;
        };
        if health.state == "passing" {
            return Ok(());
        }
        *last = render::environment::verdict(&health);
        let gist = format!("{} {}", health.state, health.message);
        standing.is(&gist, &format!("health: {last}"));
    }
}
