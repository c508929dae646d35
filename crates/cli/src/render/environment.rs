//! Environments as text.

use fuse_wire_api::{Environment, Health};

use super::block::Block;
use super::table::{self, TableCell, text};
use super::{or_dash, style, time};

/// Header of the environment list.
pub(crate) const HEADER: [&str; 6] = ["ID", "STATE", "TASK ID", "HOST", "URL", "CREATED"];

/// One row of the environment list.
pub(crate) fn row(environment: &Environment) -> Vec<TableCell> {
    vec![
        text(&environment.id),
        table::state(&environment.state),
        text(&environment.task_id),
        text(&environment.host_id),
        text(&environment.url),
        text(&time::stamp(environment.created_at)),
    ]
}

/// The detail block.
pub(crate) fn block(environment: &Environment) -> String {
    let spec = &environment.spec;
    let mut block = Block::new();
    block
        .row("id", environment.id.as_str())
        .row("state", style::state(&environment.state))
        .row("task id", or_dash(&environment.task_id))
        .row("host id", or_dash(&environment.host_id))
        .row("agent", or_dash(&environment.url))
        .row("cpus", spec.cpus.to_string())
        .row("ram mb", spec.ram_mb.to_string())
        .row("storage gb", spec.storage_gb.to_string())
        .row("region", or_dash(&spec.region))
        .row("max runtime s", ceiling(spec.max_runtime_seconds))
        .row("idle timeout s", spec.idle_timeout_seconds.to_string())
        .row("created", time::stamp(environment.created_at))
        .row("updated", time::stamp(environment.updated_at));
    if let Some(health) = &environment.health {
        block.row("health", verdict(health));
    }
    endpoints(&mut block, environment);
    block.row_if_some("error", &environment.error);
    block.render()
}

/// The shorter block at the end of `up`.
pub(crate) fn summary(environment: &Environment) -> String {
    let mut block = Block::new();
    block
        .row(
            "environment",
            format!("{}  {}", environment.id, style::state(&environment.state)),
        )
        .row("task", or_dash(&environment.task_id))
        .row_if_some("host", &environment.host_id)
        .row_if_some("agent", &environment.url);
    if let Some(health) = &environment.health {
        block.row("health", verdict(health));
    }
    endpoints(&mut block, environment);
    block.row(
        "exec",
        format!("fuse environment exec {} -- <command>", environment.id),
    );
    block.render()
}

/// 0 is no "unlimited": the server's ceiling for stuck tasks applies.
fn ceiling(seconds: i64) -> String {
    if seconds == 0 {
        "0 (the fleet's default ceiling, 7200 unless set otherwise)".to_owned()
    } else {
        seconds.to_string()
    }
}

/// The verdict of the probe on one line.
pub(crate) fn verdict(health: &Health) -> String {
    let mut text = health.state.clone();
    if health.failures > 0 {
        let plural = if health.failures == 1 {
            "failure"
        } else {
            "failures"
        };
        text.push_str(&format!("  ({} consecutive {plural})", health.failures));
    }
    if !health.message.is_empty() {
        text.push_str(&format!("  {}", health.message));
    }
    text
}

fn endpoints(block: &mut Block, environment: &Environment) {
    for endpoint in &environment.endpoints {
        let name = if endpoint.name.is_empty() {
            endpoint.port.to_string()
        } else {
            endpoint.name.clone()
        };
        let transport = match endpoint.protocol.as_str() {
            "" | "tcp" => String::new(),
            other => format!("/{other}"),
        };
        block.row(
            format!("endpoint {name}"),
            format!("{}  ->  guest :{}{transport}", endpoint.url, endpoint.port),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::table::table;

    fn environment() -> Environment {
        serde_json::from_str(
            r#"{"id":"fuse-hello","state":"running","task_id":"hello","host_id":"local",
                "url":"127.0.0.1:19551","spec":{"cpus":2,"ram_mb":2048,"storage_gb":10},
                "created_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z"}"#,
        )
        .unwrap()
    }

    fn plain(text: &str) -> String {
        let zone = time::stamp("2026-01-15T10:00:00Z".parse().unwrap());
        anstream::adapter::strip_str(text)
            .to_string()
            .replace(&zone, "2026-01-15 10:00")
    }

    #[test]
    fn minimal_block() {
        insta::assert_snapshot!("environment_block", plain(&block(&environment())));
    }

    #[test]
    fn full_block_and_summary() {
        let mut full = environment();
        full.spec.max_runtime_seconds = 600;
        full.error = "drain command failed".into();
        full.health = Some(
            serde_json::from_str(
                r#"{"state":"failing","since":"2026-01-15T10:00:00Z","failures":3,"message":"refused"}"#,
            )
            .unwrap(),
        );
        full.endpoints = serde_json::from_str(
            r#"[{"as":"http","url":"127.0.0.1:40001","port":8080},{"url":"127.0.0.1:40002","port":53,"protocol":"udp"}]"#,
        )
        .unwrap();
        insta::assert_snapshot!("environment_block_full", plain(&block(&full)));
        insta::assert_snapshot!("environment_summary", plain(&summary(&full)));
    }

    #[test]
    fn the_list() {
        let mut booting = environment();
        booting.state = "provisioning".into();
        booting.url.clear();
        booting.host_id.clear();
        let rows = vec![row(&environment()), row(&booting)];
        insta::assert_snapshot!("environment_list", plain(&table(&HEADER, rows)));
    }
}
