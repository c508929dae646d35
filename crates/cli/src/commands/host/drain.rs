//! `host drain`: out of placement and, if that is wanted, emptied.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fuse_client::{Client, FleetEvents};
use fuse_wire_api::{Environment, ErrorCode, ListEnvironments, MAX_PAGE};

use crate::app::App;
use crate::commands::done;
use crate::error::Error as CliError;
use crate::wait;

/// Pause between two looks when nothing happens: what keeps an environment there is no event.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// `host drain`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse host drain prod-east-1\n  \
    fuse host drain prod-east-1 --evict migrate --wait\n\n\
    Nothing is destroyed. The host stays draining, also when this command is ended, until \
    `fuse host uncordon` puts it back into placement.")]
pub(crate) struct DrainArgs {
    /// Id of the host.
    pub(crate) id: String,
    /// What is done with what runs there.
    #[arg(long, value_enum, default_value_t = Evict::None)]
    pub(crate) evict: Evict,
    /// Wait until nothing is left there, and show what leaves and what stays.
    #[arg(long)]
    pub(crate) wait: bool,
}

/// What is done with the environments of a host that is being drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Evict {
    /// Nothing: they end when they end.
    None,
    /// They are moved to other hosts, one at a time.
    Migrate,
    /// Their workloads are asked to stop.
    Drain,
}

impl Evict {
    /// The name in the API, and what is going to happen.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::None => ("none", "what runs there stays until it ends"),
            Self::Migrate => (
                "migrate",
                "what runs there is moved to other hosts, one at a time",
            ),
            Self::Drain => ("drain", "what runs there is asked to stop"),
        }
    }
}

/// By id.
type There = BTreeMap<String, Environment>;

/// Drains.
pub(super) async fn run(app: &App, args: &DrainArgs) -> Result<(), CliError> {
    let client = app.client()?;
    let (evict, meaning) = args.evict.words();
    // Opened before anything can leave.
    let events = match args.wait {
        true => Some(client.fleet_events(None).await?),
        false => None,
    };
    if let Err(error) = client.drain_host(&args.id, evict).await {
        if error
            .api()
            .is_some_and(|api| api.code == Some(ErrorCode::Unimplemented))
        {
            app.io.note(&format!(
                "what runs on host {} cannot be moved: leave out --evict to let it end, or stop it \
                 with --evict drain",
                args.id
            ));
        }
        return Err(error.into());
    }
    // It drains; how many there are is only good to know.
    let there = on_host(&client, &args.id).await.ok();
    let left = there.as_ref().map(There::len);
    let line = match left {
        Some(0) => format!(
            "draining host {}: nothing new is placed there, and nothing runs there",
            args.id
        ),
        _ => format!(
            "draining host {}: nothing new is placed there, {meaning}",
            args.id
        ),
    };
    let Some(events) = events else {
        if let Some(count) = left.filter(|count| *count > 0) {
            app.io.note(&format!(
                "{} there; `fuse environment list --host-id {}` shows what is left",
                counted(count),
                args.id
            ));
        }
        return done(app, &args.id, "drain", &line);
    };
    app.io.success(&line);
    let emptied = wait::interruptible(until_empty(app, &client, args, events));
    let Some(emptied) = emptied.await? else {
        app.io.warn(&format!(
            "host {id} goes on draining; `fuse host uncordon {id}` takes it back",
            id = args.id
        ));
        return Err(CliError::Status(130));
    };
    emptied?;
    done(
        app,
        &args.id,
        "drain",
        &format!("host {} is empty", args.id),
    )
}

/// Shows what leaves, until nothing is left.
async fn until_empty(
    app: &App,
    client: &Client,
    args: &DrainArgs,
    mut events: FleetEvents,
) -> Result<(), CliError> {
    let mut before = There::new();
    loop {
        let there = on_host(client, &args.id).await?;
        for id in before.keys().filter(|id| !there.contains_key(*id)) {
            app.io
                .note(&format!("{id} left, {} there", counted(there.len())));
        }
        for environment in there.values() {
            let said = before.get(&environment.id);
            if said.is_none_or(|said| {
                said.error != environment.error || said.state != environment.state
            }) && let Some(why) = why_it_stays(args, environment)
            {
                app.io
                    .warn(&format!("{} stays for now: {why}", environment.id));
            }
        }
        if there.is_empty() {
            return Ok(());
        }
        before = there;
        tokio::select! {
            event = events.next() => drop(event?),
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

/// What an operator has to see to himself.
fn why_it_stays(args: &DrainArgs, environment: &Environment) -> Option<String> {
    let destroy = format!("`fuse environment destroy {}` ends it", environment.id);
    if environment.state == "draining" {
        return Some(format!("its workload was asked to stop; {destroy}"));
    }
    if args.evict != Evict::Migrate || environment.state != "running" {
        return None;
    }
    if environment.spec.gpus > 0 {
        return Some(format!("it has GPUs and cannot be moved; {destroy}"));
    }
    if environment.spec.host_id == args.id {
        return Some(format!(
            "it is pinned to this host; `fuse environment migrate {} --to HOST` moves the pin",
            environment.id
        ));
    }
    (!environment.error.is_empty()).then(|| environment.error.clone())
}

fn counted(count: usize) -> String {
    match count {
        0 => "nothing is".to_owned(),
        1 => "1 environment is".to_owned(),
        more => format!("{more} environments are"),
    }
}

async fn on_host(client: &Client, host: &str) -> Result<There, fuse_client::Error> {
    let mut there = There::new();
    let mut query = ListEnvironments {
        host_id: host.to_owned(),
        limit: Some(MAX_PAGE.to_string()),
        ..ListEnvironments::default()
    };
    loop {
        let page = client.environments(&query).await?;
        there.extend(
            page.environments
                .into_iter()
                .map(|one| (one.id.clone(), one)),
        );
        if page.next_cursor.is_none() {
            return Ok(there);
        }
        query.cursor = page.next_cursor;
    }
}
