//! `environment create --explain`: where an environment would go, and why not elsewhere.

use fuse_wire_api::{ExplainPlacement, PlacementExplanation, PlacementHost};

use super::Error;
use super::create::{CreateArgs, spec};
use crate::app::App;
use crate::error::Error as CliError;
use crate::render::table::{self, TableCell, table, text};

/// After the state.
const SEED_AT: usize = 3;
const HEADER: [&str; 7] = ["RANK", "HOST", "STATE", "CPUS", "RAM MB", "VMS", "WHY NOT"];

/// Asks and shows. A request that no host takes is not an error here: the answer is what
/// was asked for.
pub(super) async fn run(app: &App, args: &CreateArgs) -> Result<(), CliError> {
    let mut request = ExplainPlacement {
        spec: spec(args)?,
        seed_snapshot_id: args.seed_snapshot.clone(),
    };
    request.spec.check_placement().map_err(Error::Rule)?;
    let answer = app.client()?.explain_placement(&request).await?;
    if app.io.is_json() {
        return Ok(app.io.json(&answer)?);
    }
    if !answer.hosts.is_empty() {
        app.io.data(&hosts(&answer.hosts))?;
    }
    app.io.note(&outcome(&answer));
    Ok(())
}

fn outcome(answer: &PlacementExplanation) -> String {
    if !answer.error.is_empty() {
        return format!("would be refused: {}", answer.error);
    }
    if answer.default_backend {
        return "would go to the default backend: no hosts are registered".to_owned();
    }
    let eligible = answer.hosts.iter().filter(|host| host.eligible).count();
    let has_seed = answer.hosts.iter().any(|host| host.artifact_local);
    let seed = match answer.hosts.first() {
        Some(first) if first.artifact_local => "has the seed, ",
        _ if has_seed => "is brought the seed, ",
        _ => "",
    };
    format!(
        "would go to host {} ({seed}{}, {eligible} of {} hosts fit)",
        answer.host_id,
        answer.policy,
        answer.hosts.len()
    )
}

/// Who has the seed is a column only where somebody does.
fn hosts(hosts: &[PlacementHost]) -> String {
    let mut header = HEADER.to_vec();
    let mut rows: Vec<_> = hosts.iter().map(row).collect();
    if hosts.iter().any(|host| host.artifact_local) {
        header.insert(SEED_AT, "SEED");
        for (row, host) in rows.iter_mut().zip(hosts) {
            row.insert(SEED_AT, text(if host.artifact_local { "here" } else { "" }));
        }
    }
    table(&header, rows)
}

/// Amounts are what is free.
fn row(host: &PlacementHost) -> Vec<TableCell> {
    let rank = match host.rank {
        0 => String::new(),
        rank => rank.to_string(),
    };
    vec![
        text(&rank),
        text(&host.host_id),
        table::state(&host.state),
        text(&host.free_cpus.to_string()),
        text(&host.free_ram_mb.to_string()),
        text(&host.free_vms.to_string()),
        text(&host.reason),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(json: &str) -> PlacementExplanation {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn outcomes() {
        let placed = answer(
            r#"{"policy":"spread","host_id":"a","hosts":[{"host_id":"a","eligible":true,"rank":1},
                {"host_id":"b","gate":"state","reason":"is cordoned, not active"}]}"#,
        );
        assert_eq!(
            outcome(&placed),
            "would go to host a (spread, 1 of 2 hosts fit)"
        );
        let seeded = |first, second| {
            let hosts = r#"{"policy":"spread","host_id":"a","hosts":[
                {"host_id":"a","eligible":true,"rank":1,"artifact_local":A},
                {"host_id":"b","gate":"state","artifact_local":B}]}"#;
            let hosts = hosts.replace('A', first).replace('B', second);
            outcome(&answer(&hosts))
        };
        assert_eq!(
            seeded("true", "false"),
            "would go to host a (has the seed, spread, 1 of 2 hosts fit)"
        );
        assert_eq!(
            seeded("false", "true"),
            "would go to host a (is brought the seed, spread, 1 of 2 hosts fit)"
        );
        assert_eq!(
            outcome(&answer(r#"{"error":"no hosts registered"}"#)),
            "would be refused: no hosts registered"
        );
    }
}
