//! Stage 5: a validated document to what is sent.
//!
//! [`compile`] is pure: the bodies of `files[].source` are handed in, and copied files are added to the
//! request by whoever walked the tree. Its problems are the part of the catalogue that needs values and not
//! only structure (sizes, durations, modes, resolved paths).

pub(crate) mod json;
mod limits;
mod manifest;
mod paths;
pub mod request;
mod script;
mod yaml_text;

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::decode::Document;
use crate::diagnostic::{Diagnostic, Report, Severity, quoted};
use crate::model::{Fusefile, Run};
use crate::sources::Contents;
use request::{ExposedPort, Geometry, Probe, Request, Spec};
pub use script::{FileEntry, Script};

/// Where steps and `run` start unless the file says otherwise.
pub const DEFAULT_WORKSPACE: &str = "/workspace";

/// A Fusefile without problems, compiled.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// The Fusefile as the user named it.
    pub path: String,
    /// `name`, when given.
    pub name: Option<String>,
    /// Machine size and placement.
    pub spec: Spec,
    /// The manifest's bytes.
    pub manifest: String,
    /// The parts of the startup script.
    pub script: Script,
    /// Ports to publish.
    pub expose: Vec<ExposedPort>,
    /// The probe, when there is one.
    pub healthcheck: Option<Probe>,
    /// The display, when there is one.
    pub desktop: Option<Geometry>,
    /// Bound of the startup script in seconds; 0 = the server's default.
    pub startup_timeout_seconds: i64,
    /// Names of the secrets that must be supplied, ascending.
    pub required_secrets: Vec<String>,
    /// What `copy` uploads, with resolved targets.
    pub copies: Vec<CopyEntry>,
    /// Whether the author wants the layer cache.
    pub cache_enabled: bool,
    /// The steps with what the cache needs to know about them.
    pub steps: Vec<StepPlan>,
    image_at: Option<crate::diagnostic::Position>,
}

/// One entry of `copy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyEntry {
    /// As written: relative to the Fusefile's directory, or absolute.
    pub from: String,
    /// Clean absolute guest path.
    pub to: String,
    /// Where the entry stands.
    pub at: Option<crate::diagnostic::Position>,
}

/// What the layer cache knows about a step besides its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPlan {
    /// Field path, such as `build[2]`.
    pub field: String,
    /// Globs whose matches the layer depends on.
    pub inputs: Vec<String>,
    /// The step opted out with `cache: false`.
    pub opted_out: bool,
    /// Where `inputs` stands, or else the step.
    pub at: Option<crate::diagnostic::Position>,
}

/// How an environment starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start<'a> {
    /// From the image: all steps, then `run`.
    Cold,
    /// From a snapshot that the user names: `run` only (`--from-build`).
    Seeded(&'a str),
    /// From a cached layer that holds the first `steps` steps.
    Layer {
        /// The layer's snapshot.
        snapshot: &'a str,
        /// How many steps it holds.
        steps: usize,
    },
}

/// Compiles a document that [`validate`](crate::validate) found nothing wrong with.
///
/// # Errors
/// The problems of stage 5, in the catalogue's order.
pub fn compile(document: &Document, contents: &Contents) -> Result<Compiled, Vec<Diagnostic>> {
    let file = &document.file;
    let mut report = Report::new(&document.path);
    let figures = limits::check(file, &mut report);
    let files = paths::files(file, contents, &mut report);
    let copies = paths::copies(file, &mut report);
    limits::gpu_profile(file, &mut report);
    limits::restart(file, &mut report);
    let healthcheck = limits::healthcheck(file, &mut report);
    let problems = report.into_problems();
    if !problems.is_empty() {
        return Err(problems);
    }
    let (field, steps) = file.steps();
    Ok(Compiled {
        path: document.path.clone(),
        name: Some(file.name.value.clone()).filter(|name| !name.is_empty()),
        spec: spec(file, &figures),
        manifest: manifest::render(file),
        script: Script {
            workspace: workspace(file).to_owned(),
            has_env: !file.env.is_empty(),
            files,
            fragments: steps.iter().map(|step| script::fragment(step)).collect(),
            run: run(&file.run),
        },
        expose: file
            .expose
            .iter()
            .map(|e| ExposedPort {
                port: *e.port,
                name: e.r#as.value.clone(),
            })
            .collect(),
        healthcheck,
        desktop: file.desktop.as_ref().map(|d| Geometry {
            width: *d.width,
            height: *d.height,
        }),
        startup_timeout_seconds: figures.startup_timeout_seconds,
        required_secrets: required_secrets(file),
        copies,
        cache_enabled: *file.cache.enabled,
        steps: steps
            .iter()
            .enumerate()
            .map(|(i, step)| StepPlan {
                field: format!("{field}[{i}]"),
                inputs: step
                    .inputs
                    .iter()
                    .map(|input| input.value.clone())
                    .collect(),
                opted_out: *step.cache == Some(false),
                at: step.inputs.at.or(step.at),
            })
            .collect(),
        image_at: file.image.at,
    })
}

impl Compiled {
    /// The request that starts the environment as `start` says; `copied` are the walked files, by their
    /// absolute guest path. Copied files are sent again whatever the start.
    #[must_use]
    pub fn request(
        &self,
        task_id: &str,
        start: &Start<'_>,
        copied: &BTreeMap<String, Vec<u8>>,
    ) -> Request {
        let (startup_script, seed) = match start {
            Start::Cold => (self.script.startup(), ""),
            Start::Seeded(snapshot) => (self.script.run_only(), *snapshot),
            Start::Layer { snapshot, steps } => (self.script.startup_from(*steps), *snapshot),
        };
        let mut spec = self.spec.clone();
        if matches!(start, Start::Layer { .. }) {
            // The layer holds the image already, and a request names one of the two.
            spec.image.clear();
        }
        Request {
            task_id: task_id.to_owned(),
            spec,
            manifest_inline: STANDARD.encode(&self.manifest),
            secrets: BTreeMap::new(),
            files: copied
                .iter()
                .map(|(to, bytes)| (to.clone(), STANDARD.encode(bytes)))
                .collect(),
            startup_script,
            expose: self.expose.clone(),
            healthcheck: self.healthcheck.clone(),
            desktop: self.desktop,
            seed_snapshot_id: seed.to_owned(),
            startup_script_timeout_seconds: self.startup_timeout_seconds,
            required_secrets: self.required_secrets.clone(),
        }
    }

    /// Why the file cannot boot from a snapshot that the user names, if it cannot: an image and a snapshot
    /// both name the root file system.
    #[must_use]
    pub fn refuses_seed(&self) -> Option<Diagnostic> {
        let image = Some(self.spec.image.as_str()).filter(|image| !image.is_empty())?;
        Some(Diagnostic {
            severity: Severity::Error,
            file: self.path.clone(),
            position: self.image_at,
            field: Some("image".to_owned()),
            message: format!(
                "{} and --from-build both name the root file system",
                quoted(image)
            ),
            suggestion: Some("leave one of them out".to_owned()),
        })
    }
}

/// The workspace in force.
pub(crate) fn workspace(file: &Fusefile) -> &str {
    match file.workspace.as_str() {
        "" => DEFAULT_WORKSPACE,
        path => path,
    }
}

fn run(run: &Run) -> Option<String> {
    match run {
        Run::Absent => None,
        Run::Shell(text) => Some(text.clone()),
        Run::Exec(arguments) => {
            let words: Vec<String> = arguments.iter().map(|word| script::quote(word)).collect();
            Some(words.join(" "))
        }
    }
}

fn spec(file: &Fusefile, figures: &limits::Figures) -> Spec {
    let resources = &file.resources;
    Spec {
        cpus: *resources.cpus,
        ram_mb: figures.memory_mib,
        storage_gb: crate::grammar::size::gib_ceil(figures.disk_mib),
        gpus: *resources.gpu,
        gpu_kind: resources.gpu_kind.value.clone(),
        gpu_profile: resources.gpu_profile.to_lowercase(),
        region: resources.region.value.clone(),
        arch: String::new(),
        max_runtime_seconds: figures.max_runtime_seconds,
        idle_timeout_seconds: figures.idle_timeout_seconds,
        image: file.image.value.clone(),
        host_id: file.placement.host.value.clone(),
        labels: file
            .placement
            .labels
            .iter()
            .map(|(key, entry)| (key.clone(), entry.value.value.clone()))
            .collect(),
    }
}

fn required_secrets(file: &Fusefile) -> Vec<String> {
    let listed = file.secrets.iter().map(|secret| &secret.value);
    let env = file.env.values().map(|entry| &entry.value.secret.value);
    let services = file.services.values().flat_map(|service| {
        service
            .value
            .env
            .values()
            .map(|entry| &entry.value.secret.value)
    });
    let names: BTreeSet<&String> = listed
        .chain(env)
        .chain(services)
        .filter(|name| !name.is_empty())
        .collect();
    names.into_iter().cloned().collect()
}
