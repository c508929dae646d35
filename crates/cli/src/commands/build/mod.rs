//! `build`: the steps of a Fusefile become a snapshot to boot from.
//!
//! A builder environment runs them; it goes away on every way out, Ctrl-C included, unless `--keep`.
//! Stdout gets the snapshot's id and nothing else.

mod steps;

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use fuse_client::{Client, Created};
use fuse_fusefile::layers::Plan;
use fuse_fusefile::{Compiled, Start};
use fuse_redact::Redactor;
use fuse_wire_api::{CreateEnvironment, Snapshot, Spec};

use self::steps::Builder;
use super::cache::{self, Layer};
use super::fusefile::{self, FileArgs};
use super::secrets::{self, SecretArgs};
use super::up;
use crate::app::App;
use crate::error::Error as CliError;
use crate::render;
use crate::wait::{self, Signals, View};

/// What a build snapshot says of itself.
pub(crate) const MODE: &str = "build";

/// Why there is no artifact.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nothing to build.
    #[error("{path}: no build steps, so nothing to build")]
    NoSteps {
        /// The Fusefile.
        path: String,
    },
    /// Steps ended with a status.
    #[error(
        "{phase} ended with exit code {code}{}\n{hint}",
        after_newline(printed)
    )]
    Step {
        /// `build phase`, or the steps.
        phase: String,
        /// Of the shell.
        code: i32,
        /// The end of what they printed, where that was not shown before.
        printed: String,
        /// How to see it fail by hand.
        hint: String,
    },
    /// The stream of a step broke off.
    #[error("{phase}: the orchestrator closed the stream before it told how it ended")]
    Lost {
        /// As in `Step`.
        phase: String,
    },
    /// A signal.
    #[error("interrupted; nothing was kept but the layers that were finished")]
    Interrupted,
}

fn after_newline(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("\n{text}"),
    }
}

/// `build`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  fuse build\n  fuse build -f examples/hello/Fusefile --name hello-base\n\n\
    Prints the snapshot's id: `fuse up --from-build <id>` boots from it. Needs the master token."
)]
pub(crate) struct BuildArgs {
    /// Which Fusefile.
    #[command(flatten)]
    pub(crate) file: FileArgs,
    /// Name of the artifact [default: `name` of the Fusefile, else its directory].
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) name: String,
    /// Secrets of the builder.
    #[command(flatten)]
    pub(crate) secrets: SecretArgs,
    /// An empty value satisfies a required secret.
    #[arg(long)]
    pub(crate) allow_empty_secrets: bool,
    /// Leave the builder running, to look into it.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Print the layer plan and stop; nothing is sent.
    #[arg(long)]
    pub(crate) plan: bool,
    /// Build every step, and keep no layers.
    #[arg(long)]
    pub(crate) no_cache: bool,
}

/// Everything that the build needs once it talks to a server.
struct Build<'a> {
    app: &'a App,
    client: Client,
    compiled: &'a Compiled,
    plan: Plan,
    layer: Option<Layer>,
    name: String,
    /// What the layers are of, whatever the artifact is called.
    history: String,
    keep: bool,
    commands: Vec<String>,
    /// Of the secrets' values, which steps may print.
    redactor: Redactor,
}

/// Builds and prints the id.
pub(crate) async fn run(app: &App, args: BuildArgs) -> Result<(), CliError> {
    let loaded =
        fusefile::load(args.file.locate().map_err(up::Error::from)?).map_err(up::Error::from)?;
    let compiled = loaded.compiled().map_err(up::Error::from)?;
    if compiled.steps.is_empty() {
        let path = loaded.path.display().to_string();
        return Err(Error::NoSteps { path }.into());
    }
    let copied = up::copy(app, &loaded, compiled, false)?;
    if args.plan {
        return up::plan(app, &loaded, compiled, args.no_cache);
    }
    let values = args.secrets.collect(|name| std::env::var(name).ok())?;
    secrets::require(
        &compiled.required_secrets,
        &values,
        args.allow_empty_secrets,
    )?;
    say_what_is_not_there(app, compiled);
    let mut plan = loaded
        .plan(compiled, args.no_cache)
        .map_err(up::Error::from)?;
    let client = app.client()?;
    let history = loaded.task_id("").id;
    let layer = cache::lookup(app, &client, compiled, &mut plan, &history).await;
    let mut build = Build {
        app,
        client,
        compiled,
        plan,
        layer,
        name: loaded.task_id(&args.name).id,
        history,
        keep: args.keep,
        commands: loaded.commands(),
        redactor: Redactor::new(values.values().map(String::as_str)),
    };
    let body = build.body(values.clone(), &copied)?;
    let built = build.run(&body).await;
    let (Err(failure), Some(layer)) = (&built, &build.layer) else {
        return built;
    };
    let Some(why) = cache::lost_layer(failure) else {
        return built;
    };
    let snapshot = &layer.snapshot;
    app.io.warn(&format!(
        "layer {snapshot} cannot be used: {why}; building from the start"
    ));
    cache::lose(&mut build.plan, layer, why);
    build.layer = None;
    let body = build.body(values, &copied)?;
    build.run(&body).await
}

/// Differences to `up` that would otherwise be found in a failing step.
fn say_what_is_not_there(app: &App, compiled: &Compiled) {
    if compiled.script.has_env {
        app.io
            .note("`env` is for boots: the steps of `fuse build` run without it");
    }
    let unnamed = compiled.steps.iter().all(|step| step.inputs.is_empty());
    if compiled.cache_enabled && !compiled.copies.is_empty() && unnamed {
        app.io.note(
            "copied files are in no layer key; name those that a step depends on under its `inputs`",
        );
    }
}

impl Build<'_> {
    /// The builder: size, image and place of the Fusefile, without its script, ports and probe.
    fn body(
        &self,
        secrets: BTreeMap<String, String>,
        copied: &BTreeMap<String, Vec<u8>>,
    ) -> Result<CreateEnvironment, CliError> {
        let start = match &self.layer {
            Some(layer) => Start::Layer {
                snapshot: &layer.snapshot,
                steps: layer.steps,
            },
            None => Start::Cold,
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let task = format!(
            "build-{}-{}",
            self.name,
            since.unwrap_or_default().as_nanos()
        );
        let request = self.compiled.request(&task, &start, copied);
        let body = up::decoded(&request)?;
        Ok(CreateEnvironment {
            task_id: body.task_id,
            spec: Spec {
                cpus: body.spec.cpus,
                ram_mb: body.spec.ram_mb,
                storage_gb: body.spec.storage_gb,
                region: body.spec.region,
                image: body.spec.image,
                host_id: body.spec.host_id,
                labels: body.spec.labels,
                ..Spec::default()
            },
            manifest_inline: body.manifest_inline,
            secrets,
            files: body.files,
            seed_snapshot_id: body.seed_snapshot_id,
            ..CreateEnvironment::default()
        })
    }

    async fn run(&self, body: &CreateEnvironment) -> Result<(), CliError> {
        let explained = match self.app.io.stderr_is_read() {
            true => up::explain(&self.client, body).await,
            false => None,
        };
        // From here on a signal waits until it is known what there is to take away.
        let mut signals = Signals::new()?;
        let created = self.client.create_in_background(body).await?;
        let id = &created.environment.id;
        self.app.io.note(&format!("builder {id}"));
        up::say_host(self.app, &created, &body.spec, explained.as_ref());
        let built = self.work(&created, &body.task_id, &mut signals).await;
        let interrupted = matches!(built, Err(CliError::Build(Error::Interrupted)));
        self.take_away(id, interrupted).await;
        let snapshot = built?;
        if self.app.io.is_json() {
            return Ok(self.app.io.json(&snapshot)?);
        }
        Ok(self.app.io.data(&format!("{}\n", snapshot.id))?)
    }

    /// Ends the builder, unless it is to be kept.
    async fn take_away(&self, id: &str, interrupted: bool) {
        let io = self.app.io;
        if self.keep {
            io.warn(&format!(
                "builder {id} is kept; `fuse environment destroy {id}` removes it"
            ));
            return;
        }
        if interrupted {
            io.note(&format!("interrupted; destroying builder {id}"));
        }
        if let Err(error) = self.client.destroy(id).await
            && !error.is_not_found()
        {
            io.warn(&format!(
                "builder {id} could not be destroyed: {}; `fuse environment destroy {id}` tries again",
                render::api::message(&error)
            ));
        }
    }

    /// Steps, layers, artifact.
    async fn work(
        &self,
        created: &Created,
        task: &str,
        signals: &mut Signals,
    ) -> Result<Snapshot, CliError> {
        let began = Instant::now();
        let (id, host) = (&created.environment.id, &created.environment.host_id);
        let mut view = View::of_build(self.app.io, id, host, &self.commands);
        view.expect_misses(cache::misses(&self.plan));
        if let Some(layer) = &self.layer {
            self.app.io.success(&format!(
                "{} of {} steps from layer {}",
                layer.steps,
                self.plan.steps.len(),
                layer.snapshot
            ));
        }
        for event in cache::cached_steps(&self.plan, self.layer.as_ref()) {
            view.step(event)?;
        }
        match wait::until_running(&self.client, id, task, &mut view, signals).await {
            Err(CliError::Wait(wait::Error::Interrupted { .. })) => {
                return Err(Error::Interrupted.into());
            }
            booted => booted?,
        }
        let mut builder = Builder::new(self, id, &mut view);
        let built = signals.or(builder.snapshot()).await?;
        let built = built.unwrap_or_else(|| Err(Error::Interrupted.into()));
        view.finish(began.elapsed(), built.is_ok())?;
        built
    }
}
