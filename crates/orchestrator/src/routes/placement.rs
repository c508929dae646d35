//! `/v1/placement`.

use std::collections::BTreeMap;

use axum::{Json, body::Body, extract::State};
use fuse_control::{ExplainedHost, HostVerdict, Verdict};
use fuse_model::HostId;
use fuse_wire_api::{ExplainPlacement, PlacementExplanation, PlacementHost};

use crate::http::{ApiError, App, Limit, Principal, read_required};

pub(super) async fn explain(
    State(app): State<App>,
    principal: Principal,
    body: Body,
) -> Result<Json<PlacementExplanation>, ApiError> {
    let mut request: ExplainPlacement = read_required(body, Limit::Large).await?;
    request.spec.check_placement()?;
    if !request.spec.host_id.is_empty() {
        let pin = HostId::new(request.spec.host_id.clone());
        app.control.check_pin(&pin).await?;
    }
    let tenant = principal.tenant();
    let explained = app.control.placement_explain(&request, &tenant).await?;
    let mut rejected = BTreeMap::new();
    let hosts: Vec<PlacementHost> = explained.hosts.into_iter().map(host).collect();
    for host in hosts.iter().filter(|host| !host.gate.is_empty()) {
        *rejected.entry(host.gate.clone()).or_default() += 1;
    }
    Ok(Json(PlacementExplanation {
        policy: explained.policy.as_str().to_owned(),
        host_id: hosts
            .first()
            .filter(|host| host.eligible)
            .map(|host| host.host_id.clone())
            .unwrap_or_default(),
        default_backend: explained.default_backend,
        error: explained.refusal.unwrap_or_default(),
        rejected,
        hosts,
    }))
}

fn host(explained: ExplainedHost) -> PlacementHost {
    let rejected = |gate: &str, reason: String| (0, gate.to_owned(), reason);
    let (rank, gate, reason) = match explained.verdict {
        HostVerdict::Placement(Verdict::Eligible { rank }) => (rank, String::new(), String::new()),
        HostVerdict::Placement(Verdict::NotPinned) => {
            rejected("pin", "is not the pinned host".to_owned())
        }
        HostVerdict::Placement(Verdict::Rejected { gate, reason }) => {
            rejected(gate.as_str(), reason)
        }
        HostVerdict::Seed(reason) => rejected("seed", reason.to_owned()),
    };
    let free = explained.host.free();
    PlacementHost {
        host_id: explained.host.id.to_string(),
        state: explained.host.state.as_str().to_owned(),
        eligible: rank > 0,
        rank,
        artifact_local: explained.artifact_local,
        score: explained.score,
        free_cpus: free.cpus,
        free_ram_mb: free.ram_mb,
        free_storage_gb: free.storage_gb,
        free_vms: explained.host.free_slots(),
        gate,
        reason,
    }
}
