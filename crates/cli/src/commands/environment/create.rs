//! `environment create`: an environment from a raw resource spec.

use std::fs;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::{Args, ValueEnum};
use fuse_wire_api::{CreateEnvironment, Healthcheck, Spec};
use inquire::validator::Validation;
use inquire::{CustomType, Text};

use super::{Error, show};
use crate::app::App;
use crate::commands::flags::{self, GatewayArgs, SizeArgs};
use crate::commands::healthy::{Gate, HealthArgs};
use crate::commands::secrets::SecretArgs;
use crate::error::Error as CliError;
use crate::wait::{self, End, Signals, Until, View};

/// Why there is no verdict to wait for.
const NO_HEALTHCHECK: &str = "this environment has none; give one with --healthcheck";

/// Where a wait ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// The guest answers.
    Running,
}

/// `environment create`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  fuse environment create --task-id my-task --cpus 2 --ram-mb 2048 --storage-gb 10\n\n\
    Returns when the environment runs. Placement is fleet-wide; --host pins it."
)]
pub(crate) struct CreateArgs {
    /// Id of the task, unique in the fleet; asked for in a terminal when absent.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) task_id: String,
    /// Size of the machine.
    #[command(flatten)]
    pub(crate) size: SizeArgs,
    /// GPUs, or MIG instances with --gpu-profile.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) gpus: i32,
    /// GPU model.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) gpu_kind: String,
    /// MIG profile, e.g. 1g.10gb.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) gpu_profile: String,
    /// Only hosts of this region.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) region: String,
    /// Only this host.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) host: String,
    /// Start from the disk of this snapshot instead of an image.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "SNAPSHOT"
    )]
    pub(crate) seed_snapshot: String,
    /// Only hosts with this label, as key=value; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    /// Seconds until the environment is destroyed; 0 = the fleet's ceiling (2h by default), not unlimited.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub(crate) max_runtime: i64,
    /// Manifest as JSON or base64, or @FILE with either.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TEXT|@FILE"
    )]
    pub(crate) manifest: String,
    /// Script run by `sh -lc` in the guest before create returns, or @FILE with it.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TEXT|@FILE"
    )]
    pub(crate) startup_script: String,
    /// Healthcheck as the JSON of the API, or @FILE with it.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "JSON|@FILE"
    )]
    pub(crate) healthcheck: String,
    /// Waiting for its verdict.
    #[command(flatten)]
    pub(crate) health: HealthArgs,
    /// Its gateway.
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Secrets of the environment.
    #[command(flatten)]
    pub(crate) secrets: SecretArgs,
    /// Show the state transitions until the environment is gone, as `environment watch` does.
    #[arg(long, conflicts_with_all = ["until", "wait_healthy"])]
    pub(crate) follow: bool,
    /// Show the state transitions until this state.
    #[arg(long, value_enum)]
    pub(crate) until: Option<Target>,
    /// Create nothing: show for each host why the environment would go there or not.
    #[arg(long, conflicts_with_all = ["follow", "until"])]
    pub(crate) explain: bool,
}

/// Creates and waits.
pub(crate) async fn run(app: &App, mut args: CreateArgs) -> Result<(), CliError> {
    if args.explain {
        return super::explain::run(app, &args).await;
    }
    if args.task_id.trim().is_empty() {
        if !app.io.interactive() {
            return Err(Error::TaskIdMissing.into());
        }
        form(&mut args)?;
    }
    let request = request(&args)?;
    let missing = request.healthcheck.is_none().then_some(NO_HEALTHCHECK);
    let health = Gate::of(&args.health, missing)?;
    let client = app.client()?;
    if let Some(active) = app.active_host().filter(|_| args.host.is_empty()) {
        app.io.note(&format!(
            "create is scheduled fleet-wide, the active host {active} does not matter; --host {active} pins it"
        ));
    }
    // Whoever interrupts the call below is to be told what it made.
    let mut signals = Signals::new()?;
    let created = client.create_in_background(&request).await?;
    let id = created.environment.id;
    app.io.success(&format!(
        "creating environment {id} (task {})",
        request.task_id
    ));

    if args.follow {
        let mut view = View::of_events(app.io, &id);
        let mut events = client.events(&id).await?;
        return match wait::follow(&mut events, Until::Terminal, &mut view, &mut signals).await? {
            End::Reached(event) if event.state == "destroyed" => Ok(()),
            End::Left => Ok(()),
            End::Interrupted => Err(CliError::Status(130)),
            end => Ok(wait::judge(&id, end)?),
        };
    }
    let mut view = match args.until {
        Some(Target::Running) => View::of_result(app.io, &id, &created.environment.host_id, &[]),
        None => View::quiet(app.io),
    };
    if created.in_progress || args.until.is_some() || health.is_some() {
        wait::until_running(&client, &id, &request.task_id, &mut view, &mut signals).await?;
    }
    if let Some(health) = &health {
        health.wait(app, &client, &id).await?;
    }
    show(app, &client.environment(&id).await?)?;
    if !app.io.is_json() {
        app.io
            .faint(&format!("watch it: fuse environment watch {id}"));
    }
    Ok(())
}

/// Makes the request; what the server would refuse about GPUs, sizes and labels is refused here.
fn request(args: &CreateArgs) -> Result<CreateEnvironment, CliError> {
    let mut request = CreateEnvironment {
        task_id: args.task_id.trim().to_owned(),
        spec: spec(args)?,
        manifest_inline: manifest(&literal_or_file(&args.manifest)?),
        secrets: args.secrets.collect(|name| std::env::var(name).ok())?,
        startup_script: literal_or_file(&args.startup_script)?,
        healthcheck: healthcheck(&literal_or_file(&args.healthcheck)?)?,
        gateway_url: args.gateway.gateway_url.clone(),
        gateway_token: args.gateway.gateway_token.clone(),
        seed_snapshot_id: args.seed_snapshot.clone(),
        ..CreateEnvironment::default()
    };
    request.check_head().map_err(Error::Rule)?;
    Ok(request)
}

/// The spec that the flags describe, unchecked.
pub(super) fn spec(args: &CreateArgs) -> Result<Spec, Error> {
    Ok(Spec {
        cpus: args.size.cpus,
        ram_mb: args.size.ram_mb,
        storage_gb: args.size.storage_gb,
        region: args.region.clone(),
        max_runtime_seconds: args.max_runtime,
        gpus: args.gpus,
        gpu_kind: args.gpu_kind.clone(),
        gpu_profile: args.gpu_profile.clone(),
        host_id: args.host.clone(),
        labels: flags::labels(&args.label).map_err(|value| Error::LabelShape {
            value: value.clone(),
        })?,
        ..Spec::default()
    })
}

/// The text itself, or the content of the file behind `@`.
fn literal_or_file(text: &str) -> Result<String, Error> {
    match text.strip_prefix('@') {
        None => Ok(text.to_owned()),
        Some(path) => fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

fn healthcheck(text: &str) -> Result<Option<Healthcheck>, Error> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let read = serde_json::from_str(text);
    read.map(Some).map_err(|error| Error::Healthcheck {
        reason: error.to_string(),
    })
}

/// The manifest travels as base64. JSON is encoded for the user; base64 loses the line breaks that
/// `base64` puts into it.
fn manifest(text: &str) -> String {
    if text.trim_start().starts_with('{') {
        BASE64_STANDARD.encode(text)
    } else {
        text.split_whitespace().collect()
    }
}

/// Asks for what the flags left open.
fn form(args: &mut CreateArgs) -> Result<(), CliError> {
    args.task_id = Text::new("Task ID")
        .with_validator(|text: &str| {
            Ok(if text.trim().is_empty() {
                Validation::Invalid("required".into())
            } else {
                Validation::Valid
            })
        })
        .prompt()?;
    let number = |label: &str, help: &str, preset: i64| -> Result<i64, CliError> {
        Ok(CustomType::<i64>::new(label)
            .with_default(preset)
            .with_help_message(help)
            .with_error_message("a whole number")
            .prompt()?)
    };
    let small = |value: i64| i32::try_from(value).unwrap_or(i32::MAX);
    let default = "0 = the host agent's default";
    args.size.cpus = small(number("CPUs", default, args.size.cpus.into())?);
    args.size.ram_mb = small(number("RAM MB", default, args.size.ram_mb.into())?);
    args.size.storage_gb = small(number("Storage GB", default, args.size.storage_gb.into())?);
    args.region = Text::new("Region")
        .with_initial_value(&args.region)
        .prompt()?;
    args.max_runtime = number(
        "Max runtime (seconds)",
        "0 = the fleet's ceiling (2h by default), not unlimited",
        args.max_runtime,
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_encoded_or_unwrapped() {
        assert_eq!(manifest("{\"version\":\"1\"}"), "eyJ2ZXJzaW9uIjoiMSJ9");
        assert_eq!(manifest("eyJ2ZXJz\naW9uIjoiMSJ9\n"), "eyJ2ZXJzaW9uIjoiMSJ9");
        assert_eq!(manifest(""), "");
    }

    #[test]
    fn files_are_read_behind_the_at_sign() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.sh");
        fs::write(&path, "echo hi\n").unwrap();
        assert_eq!(
            literal_or_file(&format!("@{}", path.display())).unwrap(),
            "echo hi\n"
        );
        assert_eq!(literal_or_file("echo hi").unwrap(), "echo hi");
        let error = literal_or_file("@/nonexistent/x").unwrap_err().to_string();
        assert!(
            error.starts_with("could not read /nonexistent/x"),
            "{error}"
        );
    }
}
