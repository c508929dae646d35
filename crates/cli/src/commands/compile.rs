//! `compile`: what a Fusefile becomes, without network, context or secret values.

use clap::{Args, ValueEnum};
use fuse_fusefile::Compiled;
use fuse_fusefile::request::Request;

use super::flags::TaskArgs;
use super::fusefile::{self, FileArgs};
use super::up;
use crate::app::App;
use crate::error::Error as CliError;
use crate::render;

/// How the whole request is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    /// For people.
    Text,
    /// As it is sent, less the secrets.
    Json,
    /// The same keys as YAML.
    Yaml,
}

/// One part of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Size and placement, as JSON.
    Spec,
    /// The startup script, byte for byte.
    StartupScript,
    /// The manifest.
    Manifest,
    /// Ports and their names.
    Expose,
    /// Names of the required secrets.
    Secrets,
}

/// `compile`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  fuse compile -f examples/hello/Fusefile --format yaml\n  fuse compile --only startup-script"
)]
pub(crate) struct CompileArgs {
    /// Which Fusefile.
    #[command(flatten)]
    pub(crate) file: FileArgs,
    /// Its task.
    #[command(flatten)]
    pub(crate) task: TaskArgs,
    /// Layout of the request; beats --output [default: text].
    #[arg(long, value_enum)]
    pub(crate) format: Option<Layout>,
    /// Print this part alone.
    #[arg(long, value_enum, conflicts_with = "format", value_name = "PART")]
    pub(crate) only: Option<Part>,
    /// As it boots from this snapshot: without the build steps.
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) from_build: Option<String>,
}

/// Compiles and prints.
pub(crate) fn run(app: &App, args: &CompileArgs) -> Result<(), CliError> {
    let path = args.file.locate().map_err(up::Error::from)?;
    let loaded = fusefile::load(path).map_err(up::Error::from)?;
    let compiled = loaded.compiled().map_err(up::Error::from)?;
    let copied = up::copy(app, &loaded, compiled, false)?;
    let task = loaded.task_id(&args.task.task_id);
    let start = up::start(compiled, args.from_build.as_deref())?;
    let request = compiled.request(&task.id, &start, &copied);
    let by_output = if app.io.is_json() {
        Layout::Json
    } else {
        Layout::Text
    };
    let text = match (args.only, args.format.unwrap_or(by_output)) {
        (Some(part), _) => only(part, compiled, &request),
        (None, Layout::Text) => render::compiled::text(compiled, &request),
        (None, Layout::Json) => request.to_json(),
        (None, Layout::Yaml) => request.to_yaml(),
    };
    Ok(app.io.data(&text)?)
}

fn only(part: Part, compiled: &Compiled, request: &Request) -> String {
    let lines = |lines: Vec<String>| lines.into_iter().map(|line| line + "\n").collect();
    match part {
        Part::Spec => request.spec.to_json(),
        Part::StartupScript => request.startup_script.clone(),
        Part::Manifest => format!("{}\n", compiled.manifest),
        Part::Expose => {
            let ports = request.expose.iter();
            lines(
                ports
                    .map(|port| format!("{} {}", port.port, port.name).trim_end().to_owned())
                    .collect(),
            )
        }
        Part::Secrets => lines(request.required_secrets.clone()),
    }
}
