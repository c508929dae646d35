//! `status`: the context, the active host and what runs, on one screen.

use std::collections::BTreeMap;

use clap::Args;
use fuse_client::Client;
use fuse_wire_api::{Environment, Host, PageQuery};
use serde::Serialize;

use super::paging::all_environments;
use crate::app::App;
use crate::error::Error as CliError;
use crate::render;

/// `status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  fuse status\n  fuse status --context prod -o json")]
pub(crate) struct StatusArgs {}

/// What is shown.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    /// Name of the context.
    pub(crate) context: String,
    /// Where its orchestrator is.
    pub(crate) base_url: String,
    /// Whether its token is said to be the master token.
    pub(crate) master: bool,
    /// The active host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) active_host: Option<Host>,
    /// Hosts on the first page of the list.
    pub(crate) host_count: usize,
    /// Whether that page holds all of them.
    pub(crate) host_count_complete: bool,
    /// How many environments are in each state.
    pub(crate) environments_by_state: BTreeMap<String, usize>,
    /// `host` while a host is active, else `fleet`.
    pub(crate) environment_scope: &'static str,
    /// What runs and can be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) running_endpoints: Vec<Environment>,
}

/// Reads and shows it.
pub(crate) async fn run(app: &App) -> Result<(), CliError> {
    let context = app.context()?;
    let client = app.client()?;
    let hosts = client.hosts(&PageQuery::default()).await?;
    let active_host = match app.active_host() {
        None => None,
        Some(id) => match hosts.hosts.iter().find(|host| host.id == id) {
            Some(host) => Some(host.clone()),
            None => active(app, &client, id).await?,
        },
    };
    let scope = app.active_host();
    let environments = all_environments(&client, scope.unwrap_or_default()).await?;
    let mut by_state = BTreeMap::new();
    for environment in &environments {
        *by_state.entry(environment.state.clone()).or_insert(0) += 1;
    }
    let reachable = |e: &Environment| e.state == "running" && !e.url.is_empty();
    let status = Status {
        context: context.name.clone(),
        base_url: context.base_url.clone(),
        master: context.master,
        active_host,
        host_count: hosts.hosts.len(),
        host_count_complete: hosts.next_cursor.is_none(),
        environments_by_state: by_state,
        environment_scope: if scope.is_some() { "host" } else { "fleet" },
        running_endpoints: environments.into_iter().filter(reachable).collect(),
    };
    if app.io.is_json() {
        return Ok(app.io.json(&status)?);
    }
    Ok(app.io.data(&render::status::text(&status))?)
}

/// A host that is on no page was removed by somebody else: the rest is still worth showing.
async fn active(app: &App, client: &Client, id: &str) -> Result<Option<Host>, CliError> {
    match client.host(id).await {
        Ok(host) => Ok(Some(host)),
        Err(error) if error.is_not_found() => {
            app.io.warn(&format!(
                "the active host {id} is not registered; `fuse hosts` lists those that are"
            ));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
