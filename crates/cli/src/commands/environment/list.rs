//! `environment list`.

use clap::Args;
use fuse_wire_api::{EnvironmentList, ListEnvironments};

use super::Error;
use crate::app::App;
use crate::commands::paging::{PageArgs, warn_of_more};
use crate::error::Error as CliError;
use crate::render;
use crate::render::table::table;

/// `environment list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only the environment of this task.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) task_id: String,
    /// Only this state: provisioning, running, draining or destroying.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) state: String,
    /// Only this host [default: the active host].
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) host_id: String,
    /// The whole fleet, even while a host is active.
    #[arg(long)]
    pub(crate) all: bool,
    /// Paging.
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Lists.
pub(crate) async fn run(app: &App, args: ListArgs) -> Result<(), CliError> {
    check_state(&args.state)?;
    let client = app.client()?;
    let host_id = match (args.host_id.as_str(), app.active_host()) {
        ("", Some(active)) if !args.all => active.to_owned(),
        (given, _) => given.to_owned(),
    };
    let mut all = EnvironmentList::default();
    let mut next = Some(args.page.first());
    while let Some(page) = next.take() {
        let query = ListEnvironments {
            task_id: args.task_id.clone(),
            state: args.state.clone(),
            host_id: host_id.clone(),
            limit: page.limit,
            cursor: page.cursor,
        };
        let list = client.environments(&query).await?;
        next = args.page.following(list.next_cursor.as_ref());
        all.environments.extend(list.environments);
        all.next_cursor = list.next_cursor;
    }
    if app.io.is_json() {
        return Ok(app.io.json(&all)?);
    }
    if all.environments.is_empty() {
        app.io.faint("no results");
    } else {
        let rows: Vec<_> = all
            .environments
            .iter()
            .map(render::environment::row)
            .collect();
        app.io.data(&table(&render::environment::HEADER, rows))?;
    }
    if args.host_id.is_empty() && !host_id.is_empty() {
        app.io.faint(&format!(
            "only host {host_id}, the active one; --all shows the whole fleet"
        ));
    }
    warn_of_more(app, all.next_cursor.as_ref());
    Ok(())
}

/// A typo would look like an empty fleet.
fn check_state(state: &str) -> Result<(), Error> {
    match state {
        "" | "provisioning" | "running" | "draining" | "destroying" => Ok(()),
        "destroyed" | "failed" => Err(Error::StreamOnlyState {
            state: state.to_owned(),
        }),
        _ => Err(Error::UnknownState {
            state: state.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_cannot_match_are_explained() {
        assert!(check_state("running").is_ok());
        assert!(
            check_state("failed")
                .unwrap_err()
                .to_string()
                .contains("watch")
        );
        assert!(
            check_state("runing")
                .unwrap_err()
                .to_string()
                .contains("provisioning")
        );
    }
}
