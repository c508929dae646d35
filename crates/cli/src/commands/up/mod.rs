//! `up`: a Fusefile becomes a running environment.
//!
//! Order: find, read, check everything, walk `copy`, layer plan (`--plan` ends here), secret gate, task
//! id (`--dry-run` ends here), then the first network call. So a mistake in the file or a missing secret
//! never leaves anything on a server.

mod cached;
mod steps;

use std::collections::BTreeMap;

use clap::Args;
use fuse_client::{Client, Created};
use fuse_fusefile::request::Request;
use fuse_fusefile::{Compiled, Start};
use fuse_wire_api::{CreateEnvironment, ExplainPlacement, PlacementExplanation, Spec};

use self::cached::Cached;
use super::cache::{self, Layer};
use super::environment;
use super::flags::{GatewayArgs, TaskArgs};
use super::fusefile::{self, FileArgs, Loaded};
use super::healthy::{Gate, HealthArgs};
use super::secrets::{self, SecretArgs};
use crate::app::App;
use crate::error::Error as CliError;
use crate::render;
use crate::wait::{self, Signals, View};

/// Why there is no verdict to wait for.
const NO_HEALTHCHECK: &str = "this Fusefile has no `healthcheck`";

/// Why nothing was created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The Fusefile.
    #[error(transparent)]
    Fusefile(#[from] fusefile::Error),
    /// A build step ended the create.
    #[error("{failure}\n{hint}")]
    Step {
        /// What the wait came to.
        failure: wait::Error,
        /// Which step it was, and how to see it fail by hand.
        hint: String,
    },
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
            Self::Step { failure, .. } => failure.code(),
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
    /// Its task.
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Its gateway.
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print the compiled request and stop; nothing is sent.
    #[arg(long, conflicts_with = "plan")]
    pub(crate) dry_run: bool,
    /// Print the layer plan and stop; nothing is sent.
    #[arg(long)]
    pub(crate) plan: bool,
    /// Ignore the cache block.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Boot from this snapshot instead of running the build steps.
    #[arg(long, conflicts_with_all = ["plan", "no_cache"], value_name = "SNAPSHOT")]
    pub(crate) from_build: Option<String>,
    /// Return as soon as the orchestrator has accepted the environment.
    #[arg(long, conflicts_with = "wait_healthy")]
    pub(crate) no_wait: bool,
    /// Waiting for the verdict of its healthcheck.
    #[command(flatten)]
    pub(crate) health: HealthArgs,
    /// Say what `copy` takes along and what was left out.
    #[arg(long)]
    pub(crate) show_copy: bool,
}

/// Compiles, creates, waits.
pub(crate) async fn run(app: &App, args: UpArgs) -> Result<(), CliError> {
    let loaded = fusefile::load(args.file.locate().map_err(Error::from)?).map_err(Error::from)?;
    let compiled = loaded.compiled().map_err(Error::from)?;
    let missing = compiled.healthcheck.is_none().then_some(NO_HEALTHCHECK);
    let health = Gate::of(&args.health, missing)?;
    let copied = copy(app, &loaded, compiled, args.show_copy)?;
    if args.plan {
        return plan(app, &loaded, compiled, args.no_cache);
    }
    let plan = loaded
        .plan(compiled, args.no_cache || args.from_build.is_some())
        .map_err(Error::from)?;
    let values = args.secrets.collect(|name| std::env::var(name).ok())?;
    secrets::require(
        &compiled.required_secrets,
        &values,
        args.allow_empty_secrets,
    )?;
    let task = loaded.task_id(&args.task.task_id);
    if task.derived {
        app.io.note(&format!(
            "task id {}, from the directory; `name:` in the Fusefile or --task-id sets it",
            task.id
        ));
    }
    let start = start(compiled, args.from_build.as_deref())?;
    let request = compiled.request(&task.id, &start, &copied);
    if args.dry_run {
        return dry_run(app, compiled, &request);
    }
    let client = app.client()?;
    let cached = Cached::find(app, &client, compiled, plan, &loaded.task_id("").id).await;
    let body = |start: &Start<'_>| {
        let request = compiled.request(&task.id, start, &copied);
        let mut body = body(&request, values.clone(), &args.gateway)?;
        body.startup_steps = steps::places(compiled, start);
        Ok::<_, Error>(body)
    };
    let cold = body(&start)?;
    let seeded = cached.start().map(|start| body(&start)).transpose()?;
    let explained = match args.no_wait {
        false if app.io.animated() => explain(&client, seeded.as_ref().unwrap_or(&cold)).await,
        _ => None,
    };
    let what = What {
        explained: explained.as_ref(),
        loaded: &loaded,
        compiled,
        cached: &cached,
        cold: &cold,
        seeded: seeded.as_ref(),
    };
    let id = create(app, &client, what, args.no_wait).await?;
    if args.no_wait {
        return Ok(());
    }
    if let Some(gate) = health {
        gate.wait(app, &client, &id).await?;
    }
    show(app, &client, &id).await
}

/// What is created: from a layer if there is one, and else, or when that is refused, from the start.
#[derive(Clone, Copy)]
struct What<'a> {
    explained: Option<&'a PlacementExplanation>,
    loaded: &'a Loaded,
    compiled: &'a Compiled,
    cached: &'a Cached,
    cold: &'a CreateEnvironment,
    seeded: Option<&'a CreateEnvironment>,
}

/// Why it will go where it goes, for those who watch. Amounts are those of before, so this comes first.
pub(super) async fn explain(
    client: &Client,
    body: &CreateEnvironment,
) -> Option<PlacementExplanation> {
    if !body.spec.host_id.is_empty() {
        return None;
    }
    let request = ExplainPlacement {
        spec: body.spec.clone(),
        seed_snapshot_id: body.seed_snapshot_id.clone(),
    };
    // It is not worth a word when the server does not say: the create goes on without.
    client.explain_placement(&request).await.ok()
}

/// Says where it was placed, and why there; the server may not say.
pub(super) fn say_host(
    app: &App,
    created: &Created,
    spec: &Spec,
    explained: Option<&PlacementExplanation>,
) {
    let host = &created.environment.host_id;
    if !host.is_empty() {
        let pinned = !spec.host_id.is_empty();
        app.io
            .note(&render::placement::line(host, pinned, explained));
    }
}

/// How the environment starts: cold, or from a snapshot that the user names.
pub(super) fn start<'a>(
    compiled: &Compiled,
    from_build: Option<&'a str>,
) -> Result<Start<'a>, Error> {
    match (from_build, compiled.refuses_seed()) {
        (None, _) => Ok(Start::Cold),
        (Some(_), Some(refusal)) => Err(fusefile::Error::from(refusal).into()),
        (Some(snapshot), None) => Ok(Start::Seeded(snapshot)),
    }
}

/// Prints the layer plan, without looking anything up.
pub(super) fn plan(
    app: &App,
    loaded: &Loaded,
    compiled: &Compiled,
    no_cache: bool,
) -> Result<(), CliError> {
    let plan = loaded.plan(compiled, no_cache).map_err(Error::from)?;
    if app.io.is_json() {
        return Ok(app.io.data(&plan.to_json())?);
    }
    app.io.data(&render::plan::render(&plan))?;
    if plan.steps.is_empty() {
        app.io.faint("no build steps, so no layers");
    }
    Ok(())
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

/// A compiled request as the API's own type.
pub(super) fn decoded(request: &Request) -> Result<CreateEnvironment, Error> {
    let json = serde_json::to_value(request).map_err(Error::Mismatch)?;
    serde_json::from_value(json).map_err(Error::Mismatch)
}

/// The request with what only the real create carries.
fn body(
    request: &Request,
    secrets: BTreeMap<String, String>,
    gateway: &GatewayArgs,
) -> Result<CreateEnvironment, Error> {
    let mut body = decoded(request)?;
    body.secrets = secrets;
    body.gateway_url.clone_from(&gateway.gateway_url);
    body.gateway_token.clone_from(&gateway.gateway_token);
    Ok(body)
}

/// Creates the environment and, unless that is not wanted, waits until it runs. A layer that turns out
/// to be lost is left out.
async fn create(
    app: &App,
    client: &Client,
    what: What<'_>,
    no_wait: bool,
) -> Result<String, CliError> {
    // Whoever interrupts a call below is to be told what it made.
    let mut signals = Signals::new()?;
    let created = what.cached.create(app, client, what.seeded, what.cold);
    let (created, layer) = created.await?;
    if no_wait {
        return not_waited_for(app, what, &created);
    }
    match attend(app, client, what, (created, layer), &mut signals).await {
        Err(failure) => {
            let Some(cached) = what.cached.without(app, layer, &failure) else {
                return Err(failure);
            };
            let created = client.create_in_background(what.cold).await?;
            let what = What {
                cached: &cached,
                ..what
            };
            attend(app, client, what, (created, None), &mut signals).await
        }
        attended => attended,
    }
}

/// Says what was created; answers with its id.
fn announce(app: &App, what: What<'_>, created: &Created) -> String {
    let id = &created.environment.id;
    let task = &what.cold.task_id;
    app.io
        .success(&format!("creating environment {id} (task {task})"));
    id.clone()
}

fn not_waited_for(app: &App, what: What<'_>, created: &Created) -> Result<String, CliError> {
    let id = announce(app, what, created);
    environment::show(app, &created.environment)?;
    Ok(id)
}

/// Says what was created and waits for it.
async fn attend(
    app: &App,
    client: &Client,
    what: What<'_>,
    (created, layer): (Created, Option<&Layer>),
    signals: &mut Signals,
) -> Result<String, CliError> {
    let body = what.cold;
    let id = announce(app, what, &created);
    say_host(app, &created, &body.spec, what.explained);
    let host = &created.environment.host_id;
    let mut view = View::of_result(app.io, &id, host, &what.loaded.commands());
    let plan = &what.cached.plan;
    // Without a cache there is nothing to miss.
    if plan.cache_enabled {
        view.expect_misses(cache::misses(plan));
    }
    for step in cache::cached_steps(plan, layer) {
        view.step(step)?;
    }
    match wait::until_running(client, &id, &body.task_id, &mut view, signals).await {
        Ok(()) => Ok(id),
        Err(failure) if cache::lost_layer(&failure).is_some() => Err(failure),
        Err(CliError::Wait(failure)) => Err(steps::explain(failure, &view, what.compiled, &id)),
        Err(error) => Err(error),
    }
}

/// The result. It runs, so that it cannot be read again is no failure.
async fn show(app: &App, client: &Client, id: &str) -> Result<(), CliError> {
    let environment = match client.environment(id).await {
        Ok(environment) => environment,
        Err(error) => {
            app.io.warn(&format!(
                "environment {id} runs, but reading it again failed: {}",
                render::api::message(&error)
            ));
            return Ok(());
        }
    };
    if app.io.is_json() {
        return Ok(app.io.json(&environment)?);
    }
    Ok(app.io.data(&render::environment::summary(&environment))?)
}
