//! `build`: the steps of a Fusefile become a snapshot to boot from.
//!
//! A builder environment runs them; it goes away on every way out, Ctrl-C included, unless `--keep`.
//! Stdout gets the snapshot's id and nothing else.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use fuse_client::Client;
use fuse_fusefile::layers::{Plan, Recipe};
use fuse_fusefile::{Compiled, Start};
use fuse_wire_api::{CreateEnvironment, CreateSnapshot, ExecRequest, Snapshot, Spec};

use super::cache::{self, Layer};
use super::fusefile::{self, FileArgs, Loaded};
use super::secrets::{self, SecretArgs};
use super::up;
use crate::app::App;
use crate::error::Error as CliError;
use crate::io;
use crate::render;
use crate::render::steps::Steps;
use crate::wait::{self, View};

/// Bound of each call that runs steps (milliseconds).
const STEP_LIMIT_MS: i64 = 600_000;
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
    #[error("{phase} ended with exit code {code}")]
    Step {
        /// `build phase`, or the steps.
        phase: String,
        /// Of the shell.
        code: i32,
    },
    /// A signal.
    #[error("interrupted; nothing was kept but the layers that were finished")]
    Interrupted,
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
    };
    let body = build.body(values.clone(), &copied)?;
    let built = build.run(&loaded, &body, args.keep).await;
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
    build.run(&loaded, &body, args.keep).await
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

    async fn run(
        &self,
        loaded: &Loaded,
        body: &CreateEnvironment,
        keep: bool,
    ) -> Result<(), CliError> {
        let created = self.client.create_in_background(body).await?;
        let id = created.environment.id;
        self.app.io.note(&format!("builder {id}"));
        let work = wait::interruptible(self.work(loaded, &id, &body.task_id)).await;
        if keep {
            self.app.io.warn(&format!(
                "builder {id} is kept; `fuse environment destroy {id}` removes it"
            ));
        } else if let Err(error) = self.client.destroy(&id).await
            && !error.is_not_found()
        {
            self.app.io.warn(&format!(
                "builder {id} could not be destroyed: {}; `fuse environment destroy {id}` tries again",
                render::api::message(&error)
            ));
        }
        let Some(snapshot) = work?.transpose()? else {
            return Err(Error::Interrupted.into());
        };
        if self.app.io.is_json() {
            return Ok(self.app.io.json(&snapshot)?);
        }
        Ok(self.app.io.data(&format!("{}\n", snapshot.id))?)
    }

    /// Steps, layers, artifact.
    async fn work(&self, loaded: &Loaded, id: &str, task: &str) -> Result<Snapshot, CliError> {
        let mut view = View::quiet(self.app.io);
        wait::until_running(&self.client, id, task, &mut view).await?;
        let mut steps = Steps::new(&loaded.commands());
        if let Some(layer) = &self.layer {
            self.app.io.success(&format!(
                "{} of {} steps from layer {}",
                layer.steps,
                self.plan.steps.len(),
                layer.snapshot
            ));
        }
        for event in cache::cached_steps(&self.plan, self.layer.as_ref()) {
            self.say(steps.add(event));
        }
        let began = Instant::now();
        self.build(id, &mut steps).await?;
        if let Some(summary) = steps.summary(millis(began.elapsed())) {
            self.app.io.note(&summary);
        }
        let artifact = CreateSnapshot {
            mode: MODE.to_owned(),
            comment: format!("fuse build {}", self.name),
            metadata: [("name".to_owned(), self.name.clone())].into(),
            ..CreateSnapshot::default()
        };
        Ok(self.client.create_snapshot(id, &artifact).await?)
    }

    /// Each cacheable step by itself, with a snapshot behind it; everything else in one go, in one shell.
    async fn build(&self, id: &str, steps: &mut Steps) -> Result<(), CliError> {
        let script = &self.compiled.script;
        let count = script.fragments.len();
        let start = self.layer.as_ref().map_or(0, |layer| layer.steps);
        let cacheable = self.plan.steps.iter().filter(|step| step.cacheable).count();
        if cacheable == 0 {
            let fields = "build phase".to_owned();
            return self
                .exec(id, steps, &script.build(), 0..count, fields)
                .await;
        }
        for index in start..cacheable {
            let text = script.range(index, index + 1, index == 0);
            let field = self.compiled.steps[index].field.clone();
            self.exec(id, steps, &text, index..index + 1, field).await?;
            let key = &self.plan.steps[index].key;
            let layer = CreateSnapshot {
                mode: MODE.to_owned(),
                layer_key: key.clone(),
                comment: format!("layer {} of {}", index + 1, self.name),
                metadata: Recipe::of(&self.plan, index, &self.history)
                    .map(|recipe| recipe.metadata())
                    .unwrap_or_default(),
                ..CreateSnapshot::default()
            };
            self.client.create_snapshot(id, &layer).await?;
        }
        let rest = start.max(cacheable);
        if rest == count {
            return Ok(());
        }
        let field = format!("{} and what follows", self.compiled.steps[rest].field);
        let text = script.range(rest, count, false);
        self.exec(id, steps, &text, rest..count, field).await
    }

    /// Runs one script in the builder, shows its output, and a line for the steps in it.
    async fn exec(
        &self,
        id: &str,
        steps: &mut Steps,
        script: &str,
        range: std::ops::Range<usize>,
        phase: String,
    ) -> Result<(), CliError> {
        let request = ExecRequest {
            cmd: vec!["sh".to_owned(), "-lc".to_owned(), script.to_owned()],
            timeout_ms: STEP_LIMIT_MS,
            ..ExecRequest::default()
        };
        let began = Instant::now();
        let done = self.client.exec(id, &request).await?;
        // Stdout is the id's alone.
        io::raw_stderr(done.stdout.as_bytes())?;
        io::raw_stderr(done.stderr.as_bytes())?;
        let alone = range.len() == 1;
        // Which of several steps failed, the shell does not say.
        if done.exit_code == 0 || alone {
            let last = range.end.saturating_sub(1);
            let misses = cache::misses(&self.plan);
            for index in range {
                let mut event = cache::step_event(index, self.plan.steps.len());
                if let Some(note) = misses.get(index) {
                    note.complete(&mut event);
                }
                event.exit_code = done.exit_code;
                // What ran in one call has one time, which belongs to its end.
                if index == last {
                    event.duration_ms = millis(began.elapsed());
                }
                self.say(steps.add(event));
            }
        }
        match done.exit_code {
            0 => Ok(()),
            code => Err(Error::Step { phase, code }.into()),
        }
    }

    fn say(&self, lines: Vec<String>) {
        for line in lines {
            self.app.io.note(&line);
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
