//! `hosts` and `host`: list, look at, select, register. People type either spelling, so both carry
//! the same verbs.

mod drain;
mod register;

use clap::{Args, Subcommand};
use fuse_client::ApiError;
use fuse_wire_api::{Allocated, Capacity, Host, HostList};
use jiff::Timestamp;
use serde::Serialize;

use super::paging::{PageArgs, warn_of_more};
use super::{confirm, done};
use crate::app::App;
use crate::error::Error as CliError;
use crate::render;
use crate::render::table::table;

pub(crate) use register::RegisterArgs;

/// Why a host command was refused before or after the API call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A host needs the address of its agent.
    #[error("a host needs --url <agent address>, for example --url http://10.0.0.5:8090")]
    UrlMissing,
    /// Firecracker agents always have a token.
    #[error(
        "a firecracker host needs --token: its FC_AGENT_TOKEN, not the orchestrator's token. \
         --no-verify registers an agent that has none"
    )]
    TokenMissing,
    /// Shape of `--mig-profile`.
    #[error("invalid --mig-profile \"{value}\": expected profile=count (e.g. 1g.10gb=4)")]
    MigShape {
        /// As given.
        value: String,
    },
    /// Count of `--mig-profile`.
    #[error("invalid --mig-profile \"{value}\": count must be a positive number")]
    MigCount {
        /// As given.
        value: String,
    },
    /// Shape of `--label`.
    #[error("invalid --label \"{value}\": expected key=value (e.g. disk=nvme)")]
    LabelShape {
        /// As given.
        value: String,
    },
    /// The number of VMs is never probed.
    #[error("--max-vms must be greater than 0: it is policy, so it is declared and never probed")]
    MaxVms,
    /// A rule of the API, found without asking.
    #[error("invalid argument: {0}")]
    Rule(#[from] fuse_wire_api::Violation),
    /// The agent does not take the token.
    #[error("{}\n{hint}", render::api::api_message(api))]
    AgentToken {
        /// What the orchestrator said.
        api: Box<ApiError>,
        /// Which token is meant.
        hint: String,
    },
    /// No id, and none to fall back on.
    #[error(
        "no host given and none is active: `fuse host <id>` selects one, `fuse hosts` lists them"
    )]
    NoActiveHost,
    /// An id that looks like a misspelt verb.
    #[error("not found: host {id}{hint}")]
    Unknown {
        /// The id.
        id: String,
        /// What was probably meant.
        hint: String,
    },
}

impl Error {
    /// The orchestrator's error behind it, if any.
    pub(crate) fn api(&self) -> Option<&ApiError> {
        match self {
            Self::AgentToken { api, .. } => Some(api),
            _ => None,
        }
    }
}

/// `hosts`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example:\n  fuse hosts --all-pages"
)]
pub(crate) struct HostsArgs {
    /// Paging of the list.
    #[command(flatten)]
    pub(crate) page: PageArgs,
    /// What else to do.
    #[command(subcommand)]
    pub(crate) command: Option<HostsCommand>,
}

/// `hosts …`.
#[derive(Debug, Subcommand)]
pub(crate) enum HostsCommand {
    /// List the hosts of the fleet.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  fuse hosts list --limit 20"
    )]
    List(PageArgs),
    /// What `host` can do, too.
    #[command(flatten)]
    Host(HostCommand),
}

/// `host`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example:\n  fuse host prod-east-1\n\nWithout an id, shows the active host. The active \
        host narrows lists; it does not pin where environments run."
)]
pub(crate) struct HostArgs {
    /// Host to make the active one.
    pub(crate) id: Option<String>,
    /// What else to do.
    #[command(subcommand)]
    pub(crate) command: Option<HostCommand>,
}

/// `host …`.
#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Register a host, or replace the registration of that id (master token).
    Register(Box<RegisterArgs>),
    /// Show one host.
    #[command(after_help = "Example:\n  fuse host get prod-east-1")]
    Get(GetArgs),
    /// Take a host out of placement; what runs there goes on (master token).
    #[command(after_help = "Example:\n  fuse host cordon prod-east-1")]
    Cordon(IdArgs),
    /// Put a host back into placement (master token).
    #[command(after_help = "Example:\n  fuse host uncordon prod-east-1")]
    Uncordon(IdArgs),
    /// Take a host out of placement for good; nothing is destroyed (master token).
    Drain(drain::DrainArgs),
    /// Ask the host agent again what the host has; declared values stay (master token).
    #[command(after_help = "Example:\n  fuse host probe prod-east-1")]
    Probe(IdArgs),
    /// Remove a host that has no environments (master token).
    #[command(
        visible_aliases = ["rm", "deregister"],
        after_help = "Example:\n  fuse host remove prod-east-1 --yes"
    )]
    Remove(RemoveArgs),
    /// Show how much of a host is allocated and how much is free.
    #[command(after_help = "Example:\n  fuse host metrics prod-east-1")]
    Metrics(MetricsArgs),
}

/// A host by id.
#[derive(Debug, Args)]
pub(crate) struct IdArgs {
    /// Id of the host.
    pub(crate) id: String,
}

/// `host get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Id of the host.
    pub(crate) id: String,
    /// List the GPUs that the host agent reported, too.
    #[arg(long)]
    pub(crate) devices: bool,
}

/// `host remove`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Id of the host.
    pub(crate) id: String,
    /// Do not ask.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `host metrics`.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Id of the host [default: the active host].
    pub(crate) id: Option<String>,
}

/// Runs `hosts`.
pub(crate) async fn run_hosts(app: &App, args: HostsArgs) -> Result<(), CliError> {
    match args.command {
        None => list(app, &args.page).await,
        Some(HostsCommand::List(page)) => list(app, &page).await,
        Some(HostsCommand::Host(command)) => run_command(app, command).await,
    }
}

/// Runs `host`.
pub(crate) async fn run_host(app: &App, args: HostArgs) -> Result<(), CliError> {
    match (args.command, args.id) {
        (Some(command), _) => run_command(app, command).await,
        (None, Some(id)) => select(app, &id).await,
        (None, None) => show_active(app),
    }
}

async fn run_command(app: &App, command: HostCommand) -> Result<(), CliError> {
    match command {
        HostCommand::Register(args) => register::run(app, *args).await,
        HostCommand::Get(args) => {
            let host = app.client()?.host(&args.id).await?;
            if args.devices && !app.io.is_json() {
                devices(app, &host)?;
            }
            show(app, &host)
        }
        HostCommand::Probe(args) => {
            let probed = app.client()?.probe_host(&args.id).await;
            let host = probed.map_err(|error| register::refused(app, error, None))?;
            app.io.success(&format!("probed host \"{}\"", host.id));
            show(app, &host)
        }
        HostCommand::Drain(args) => drain::run(app, &args).await,
        HostCommand::Cordon(args) => {
            app.client()?.cordon_host(&args.id).await?;
            done(
                app,
                &args.id,
                "cordon",
                &format!("cordoned host {}: nothing new is placed there", args.id),
            )
        }
        HostCommand::Uncordon(args) => {
            app.client()?.uncordon_host(&args.id).await?;
            done(
                app,
                &args.id,
                "uncordon",
                &format!("uncordoned host {}", args.id),
            )
        }
        HostCommand::Remove(args) => remove(app, &args).await,
        HostCommand::Metrics(args) => metrics(app, args.id.as_deref()).await,
    }
}

async fn list(app: &App, page: &PageArgs) -> Result<(), CliError> {
    let client = app.client()?;
    let mut all = HostList::default();
    let mut next = Some(page.first());
    while let Some(query) = next.take() {
        let list = client.hosts(&query).await?;
        next = page.following(list.next_cursor.as_ref());
        all.hosts.extend(list.hosts);
        all.next_cursor = list.next_cursor;
    }
    if app.io.is_json() {
        return Ok(app.io.json(&all)?);
    }
    if all.hosts.is_empty() {
        app.io.faint("no results");
        return Ok(());
    }
    let now = Timestamp::now();
    let active = app.active_host();
    let rows: Vec<_> = all
        .hosts
        .iter()
        .map(|host| render::host::row(host, active == Some(host.id.as_str()), now))
        .collect();
    app.io.data(&table(&render::host::HEADER, rows))?;
    warn_of_more(app, all.next_cursor.as_ref());
    Ok(())
}

/// The host block with its warnings and the note on what `last seen` is not.
fn show(app: &App, host: &Host) -> Result<(), CliError> {
    if app.io.is_json() {
        app.io.json(host)?;
    } else {
        app.io.data(&render::host::block(host, Timestamp::now()))?;
        for warning in &host.warnings {
            app.io.warn(warning);
        }
    }
    app.io.note(render::host::NOTE);
    Ok(())
}

/// The GPU inventory, which only the host agent knows.
fn devices(app: &App, host: &Host) -> Result<(), CliError> {
    let devices = &host.capacity.gpu_devices;
    if devices.is_empty() {
        app.io.faint("the host agent reported no GPUs");
        return Ok(());
    }
    let rows = devices.iter().map(render::host::device_row).collect();
    Ok(app.io.data(&table(&render::host::DEVICE_HEADER, rows))?)
}

async fn remove(app: &App, args: &RemoveArgs) -> Result<(), CliError> {
    confirm(
        app,
        args.yes,
        &format!("Remove host {} from the fleet?", args.id),
    )?;
    app.client()?.remove_host(&args.id).await?;
    let context = app.context()?;
    if context.active_host.as_deref() == Some(args.id.as_str()) {
        app.file
            .update(|config| config.set_active_host(&context.name, None))?;
        app.io.note("it was the active host; none is active now");
    }
    done(
        app,
        &args.id,
        "remove",
        &format!("removed host {}", args.id),
    )
}

async fn metrics(app: &App, id: Option<&str>) -> Result<(), CliError> {
    #[derive(Serialize)]
    struct Metrics<'a> {
        allocated: &'a Allocated,
        capacity: &'a Capacity,
        host_id: &'a str,
        state: &'a str,
    }
    let id = id.or(app.active_host()).ok_or(Error::NoActiveHost)?;
    let host = app.client()?.host(id).await?;
    if app.io.is_json() {
        return Ok(app.io.json(&Metrics {
            allocated: &host.allocated,
            capacity: &host.capacity,
            host_id: &host.id,
            state: &host.state,
        })?);
    }
    Ok(app.io.data(&render::host::metrics(&host))?)
}

#[derive(Serialize)]
struct ActiveHost<'a> {
    active_host: Option<&'a str>,
}

fn show_active(app: &App) -> Result<(), CliError> {
    let active = app.context()?.active_host.as_deref();
    if app.io.is_json() {
        return Ok(app.io.json(&ActiveHost {
            active_host: active,
        })?);
    }
    app.io.note(&match active {
        Some(id) => format!("active host: {id}"),
        None => "no active host: `fuse host <id>` selects one, `fuse hosts` lists them".to_owned(),
    });
    Ok(())
}

async fn select(app: &App, id: &str) -> Result<(), CliError> {
    let context = app.context()?.name.clone();
    let host = app
        .client()?
        .host(id)
        .await
        .map_err(|error| unknown(error, id))?;
    app.file
        .update(|config| config.set_active_host(&context, Some(host.id.clone())))?;
    app.io.success(&format!("active host: {}", host.id));
    if app.io.is_json() {
        app.io.json(&ActiveHost {
            active_host: Some(&host.id),
        })?;
    }
    Ok(())
}

/// A mistyped verb arrives as a host id; name the verb.
fn unknown(error: fuse_client::Error, id: &str) -> CliError {
    const VERBS: [&str; 8] = [
        "register", "get", "cordon", "uncordon", "drain", "probe", "remove", "metrics",
    ];
    if !error.is_not_found() {
        return error.into();
    }
    let nearest = VERBS
        .into_iter()
        .map(|verb| (strsim::damerau_levenshtein(verb, id), verb))
        .min()
        .filter(|(distance, _)| *distance <= 2);
    let hint = match nearest {
        Some((_, verb)) => format!("; did you mean `fuse host {verb}`?"),
        None => "; `fuse hosts` lists the registered ones".to_owned(),
    };
    Error::Unknown {
        id: id.to_owned(),
        hint,
    }
    .into()
}
