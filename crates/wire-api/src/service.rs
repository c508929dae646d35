//! Bodies of the outer probes: `/health`, `/ready`, `/v1/version`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HealthStatus {
    /// `ok`.
    pub status: String,
}

/// `GET /ready`; the 503 form has the same shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// `ready` or `not_ready`.
    pub status: String,
    /// Outcome of each check: `ok` or what is wrong.
    pub checks: BTreeMap<String, String>,
}

/// `GET /v1/version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionInfo {
    /// `fuse-orchestrator`.
    pub service: String,
    /// The release, `dev` when the build is unstamped.
    pub version: String,
}
