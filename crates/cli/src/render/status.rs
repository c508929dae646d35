//! The status screen.

use std::fmt::Write as _;

use fuse_wire_api::Host;
use owo_colors::OwoColorize as _;

use super::style;
use crate::commands::status::Status;

/// Renders it.
pub(crate) fn text(status: &Status) -> String {
    let master = if status.master { " (master)" } else { "" };
    let mut out = format!(
        "{} {}{master}\n  {}\n\n",
        "context".bold(),
        status.context,
        status.base_url
    );
    out += &host(status.active_host.as_ref());
    let more = if status.host_count_complete { "" } else { "+" };
    // Writing to a String cannot fail, here and below.
    writeln!(out, "  {}{more} host(s) registered\n", status.host_count).ok();
    writeln!(
        out,
        "{} ({} scope)",
        "environments".bold(),
        status.environment_scope
    )
    .ok();
    let states: Vec<_> = status
        .environments_by_state
        .iter()
        .map(|(state, count)| format!("{} x{count}", style::state(state)))
        .collect();
    if states.is_empty() {
        out += "  none\n";
    } else {
        writeln!(out, "  {}", states.join("   ")).ok();
    }
    if !status.running_endpoints.is_empty() {
        writeln!(out, "\n{}", "running endpoints".bold()).ok();
    }
    for environment in &status.running_endpoints {
        writeln!(out, "  {}  {}", environment.id, environment.url).ok();
        for endpoint in &environment.endpoints {
            let name = match endpoint.name.as_str() {
                "" => endpoint.port.to_string(),
                name => name.to_owned(),
            };
            writeln!(out, "    {name}  {}", endpoint.url).ok();
        }
    }
    out
}

fn host(active: Option<&Host>) -> String {
    let title = "active host".bold();
    let Some(host) = active else {
        return format!("{title} none (`fuse host <id>` selects one)\n");
    };
    let (used, all) = (&host.allocated, &host.capacity);
    format!(
        "{title} {}  {}\n  cpus {}/{}   ram {}/{} mb   storage {}/{} gb   vms {}/{}\n",
        host.id,
        style::state(&host.state),
        used.cpus,
        all.cpus,
        used.ram_mb,
        all.ram_mb,
        used.storage_gb,
        all.storage_gb,
        used.vm_count,
        all.vm_count
    )
}
