//! `up`: a Fusefile becomes a running environment.
//!
//! Order: find, read, check everything, walk `copy`, secret gate, task id (`--dry-run` ends here),
//! then the first network call. So a mistake in the file or a missing secret never leaves anything on
//! a server.

use std::collections::BTreeMap;

use clap::Args;
use fuse_client::Client;
use fuse_fusefile::request::Request;
use fuse_fusefile::{Compiled, Start};
use fuse_wire_api::{CreateEnvironment, Environment};

use super::environment;
use super::fusefile::{self, FileArgs, Loaded};
use super::secrets::{self, SecretArgs};
use crate::app::App;
use crate::error::Error as CliError;
use crate::render;
use crate::wait::{self, View};

/// Why nothing was created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The Fusefile.
    #[error(transparent)]
    Fusefile(#[from] fusefile::Error),
    /// The compiler and the API disagree about the request; a defect of this program.
    #[error("the compiled request is not one that the API knows: {0}")]
    Mismatch(serde_json::Error),
}

impl Error {
    /// The stable word for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Fusefile(fusefile::Error::Invalid { .. }) => "invalid_fusefile",
            Self::Fusefile(_) => "fusefile",
            Self::Mismatch(_) => "internal",
        }
    }
}

/// `up`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse up\n  \
    fuse up -f examples/hello/Fusefile --secret-env API_TOKEN\n  fuse up --dry-run -o json")]
pub(crate) struct UpArgs {
    /// Which Fusefile.
    #[command(flatten)]
    pub(crate) file: FileArgs,
    /// Secrets of the environment.
    #[command(flatten)]
    pub(crate) secrets: SecretArgs,
    /// An empty value satisfies a required secret.
    #[arg(long)]
    pub(crate) allow_empty_secrets: bool,
    /// Id of the task [default: `name` of the Fusefile, else its directory].
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) task_id: String,
    /// Passed to the guest agent.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "URL"
    )]
    pub(crate) gateway_url: String,
    /// Passed to the guest agent.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TOKEN"
    )]
    pub(crate) gateway_token: String,
    /// Print the compiled request and stop; nothing is sent.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Return as soon as the orchestrator has accepted the environment.
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Say what `copy` takes along and what was left out.
    #[arg(long)]
    pub(crate) show_copy: bool,
}

/// Compiles, creates, waits.
pub(crate) async fn run(app: &App, args: UpArgs) -> Result<(), CliError> {
    let loaded = fusefile::load(args.file.locate().map_err(Error::from)?).map_err(Error::from)?;
    let compiled = loaded.compiled().map_err(Error::from)?;
    let copied = copy(app, &loaded, compiled, args.show_copy)?;
    let values = args.secrets.collect(|name| std::env::var(name).ok())?;
    secrets::require(
        &compiled.required_secrets,
        &values,
        args.allow_empty_secrets,
    )?;
    let task = loaded.task_id(&args.task_id);
    if task.derived {
        app.io.note(&format!(
            "task id {}, from the directory; `name:` in the Fusefile or --task-id sets it",
            task.id
        ));
    }
    let request = compiled.request(&task.id, &Start::Cold, &copied);
    if args.dry_run {
        return dry_run(app, compiled, &request);
    }
    let body = body(&request, values, &args)?;
    let client = app.client()?;
    create(app, &client, &loaded, &body, args.no_wait).await
}

/// Reads what `copy` names. What the built-in ignore rules left out is said in any case.
pub(super) fn copy(
    app: &App,
    loaded: &Loaded,
    compiled: &Compiled,
    show: bool,
) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let (walked, warnings) = loaded.walk(compiled)?;
    for warning in warnings {
        app.io.warn(&warning.to_string());
    }
    if show {
        app.io.note(walked.report().trim_end());
    } else {
        for note in walked.default_skip_notes() {
            app.io.note(&note);
        }
    }
    Ok(loaded.read(compiled, &walked)?)
}

fn dry_run(app: &App, compiled: &Compiled, request: &Request) -> Result<(), CliError> {
    let text = if app.io.is_json() {
        request.to_json()
    } else {
        render::compiled::text(compiled, request)
    };
    Ok(app.io.data(&text)?)
}

/// The request with what only the real create carries.
fn body(
    request: &Request,
    secrets: BTreeMap<String, String>,
    args: &UpArgs,
) -> Result<CreateEnvironment, Error> {
    let json = serde_json::to_value(request).map_err(Error::Mismatch)?;
    let mut body: CreateEnvironment = serde_json::from_value(json).map_err(Error::Mismatch)?;
    body.secrets = secrets;
    body.gateway_url.clone_from(&args.gateway_url);
    body.gateway_token.clone_from(&args.gateway_token);
    Ok(body)
}

async fn create(
    app: &App,
    client: &Client,
    loaded: &Loaded,
    body: &CreateEnvironment,
    no_wait: bool,
) -> Result<(), CliError> {
    let created = client.create_in_background(body).await?;
    let id = created.environment.id.clone();
    app.io.success(&format!(
        "creating environment {id} (task {})",
        body.task_id
    ));
    if no_wait {
        return environment::show(app, &created.environment);
    }
    let mut view = View::of_result(app.io, &id, &loaded.commands());
    wait::until_running(client, &id, &body.task_id, &mut view).await?;
    match client.environment(&id).await {
        Ok(environment) => show(app, &environment),
        Err(error) => {
            app.io.warn(&format!(
                "environment {id} runs, but reading it again failed: {}",
                render::api::message(&error)
            ));
            Ok(())
        }
    }
}

fn show(app: &App, environment: &Environment) -> Result<(), CliError> {
    if app.io.is_json() {
        return Ok(app.io.json(environment)?);
    }
    Ok(app.io.data(&render::environment::summary(environment))?)
}
