//! Probes and identity.

use fuse_wire_api::{HealthStatus, Readiness, VersionInfo};
use serde_json::json;

use super::operation::{Call, Operation};

const SERVICE: (&str, &str) = ("Service", "");

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            ("GET", "/health"),
            "getHealth",
            SERVICE,
            Call::new("Whether the process answers").json::<HealthStatus>(
                200,
                "It does.",
                json!({"status": "ok"}),
            ),
        ),
        Operation::new(
            ("GET", "/ready"),
            "getReadiness",
            SERVICE,
            Call::new("Whether requests can be served")
                .about(
                    "`checks` names each condition: `state_store` (the store answers), `fleet` \
                     (recovery is over), `reconcile` (cycles complete); `encryption_key` is there only \
                     when something stored was sealed with another key. A value other than `ok` \
                     says what is wrong.",
                )
                .json::<Readiness>(
                    200,
                    "Every check is `ok`.",
                    json!({"status": "ready", "checks": {"state_store": "ok", "fleet": "ok", "reconcile": "ok"}}),
                )
                .json::<Readiness>(
                    503,
                    "Some check is not; the same object, no error envelope.",
                    json!({"status": "not_ready", "checks": {"state_store": "ok", "fleet": "recovering", "reconcile": "ok"}}),
                ),
        ),
        Operation::new(
            ("GET", "/metrics"),
            "getMetrics",
            SERVICE,
            Call::new("Figures for Prometheus").text(
                "The text format.",
                "text/plain",
                "orchestrator_fleet_tracked_vms 3\n",
            ),
        ),
        Operation::new(
            ("GET", "/v1/version"),
            "getVersion",
            SERVICE,
            Call::new("Which release this is").json::<VersionInfo>(
                200,
                "Its name and release; `dev` for a build that is none.",
                json!({"service": "fuse-orchestrator", "version": "0.1.0"}),
            ),
        ),
        Operation::new(
            ("GET", "/openapi.json"),
            "getOpenapi",
            SERVICE,
            Call::new("This document").text(
                "OpenAPI 3.1.",
                "application/json",
                "",
            ),
        ),
    ]
}
