//! `snapshot list`.

use clap::Args;
use fuse_wire_api::{ListSnapshots, SnapshotList};

use super::Error;
use crate::app::App;
use crate::commands::paging::{PageArgs, warn_of_more};
use crate::error::Error as CliError;
use crate::render;
use crate::render::table::table;

const STATES: [&str; 5] = ["creating", "ready", "restoring", "deleting", "error"];

/// `snapshot list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those of this environment.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) vm_id: String,
    /// Only those of this task.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) task_id: String,
    /// Only those that count against this tenant's quota.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) tenant_id: String,
    /// Only this state: creating, ready, restoring, deleting or error.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) state: String,
    /// Only this mode.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) mode: String,
    /// Only those with this name in their metadata.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) name: String,
    /// Only those on this host.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) host_id: String,
    /// Paging.
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Lists.
pub(crate) async fn run(app: &App, args: ListArgs) -> Result<(), CliError> {
    if !args.state.is_empty() && !STATES.contains(&args.state.as_str()) {
        return Err(Error::UnknownState { state: args.state }.into());
    }
    if let Some(active) = app.active_host()
        && args.vm_id.is_empty()
        && args.task_id.is_empty()
        && args.host_id.is_empty()
    {
        app.io.warn(&format!(
            "snapshots of the whole fleet: the active host {active} does not narrow this list, --host-id does"
        ));
    }
    let client = app.client()?;
    let mut all = SnapshotList::default();
    let mut next = Some(args.page.first());
    while let Some(page) = next.take() {
        let query = ListSnapshots {
            vm_id: args.vm_id.clone(),
            task_id: args.task_id.clone(),
            tenant_id: args.tenant_id.clone(),
            state: args.state.clone(),
            mode: args.mode.clone(),
            name: args.name.clone(),
            host_id: args.host_id.clone(),
            limit: page.limit,
            cursor: page.cursor,
            ..ListSnapshots::default()
        };
        let list = client.snapshots(&query).await?;
        next = args.page.following(list.next_cursor.as_ref());
        all.snapshots.extend(list.snapshots);
        all.next_cursor = list.next_cursor;
    }
    if app.io.is_json() {
        return Ok(app.io.json(&all)?);
    }
    if all.snapshots.is_empty() {
        app.io.faint("no results");
    } else {
        let rows: Vec<_> = all.snapshots.iter().map(render::snapshot::row).collect();
        app.io.data(&table(&render::snapshot::HEADER, rows))?;
    }
    warn_of_more(app, all.next_cursor.as_ref());
    Ok(())
}
