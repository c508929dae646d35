//! Asking where an environment would go.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    json::{is_zero, object},
    spec::Spec,
};

/// `POST /v1/placement/explain`. The body of a create may be sent as it is; all but the
/// spec and the seed is passed over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ExplainPlacement {
    /// What is to be placed.
    #[serde(deserialize_with = "object")]
    pub spec: Spec,
    /// The snapshot that it is to start from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub seed_snapshot_id: String,
}

/// Where it would go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PlacementExplanation {
    /// `spread` or `binpack`.
    pub policy: String,
    /// The host; empty when none takes it, and on the default backend.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// The fleet has no hosts and the default backend takes it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub default_backend: bool,
    /// What a create would be refused with.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// How many hosts each gate turned away.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<String, u64>,
    /// Every host, in the order of preference, then those that do not take it.
    pub hosts: Vec<PlacementHost>,
}

/// A host in an explanation. Amounts are before placement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PlacementHost {
    /// The host.
    pub host_id: String,
    /// `active`, `cordoned` or `draining`.
    pub state: String,
    /// Whether it can take the environment.
    pub eligible: bool,
    /// Place in the order of preference, from 1; 0 when it is not eligible.
    #[serde(skip_serializing_if = "is_zero")]
    pub rank: usize,
    /// Whether it has the seed; such hosts come before all others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub artifact_local: bool,
    /// Free room as placement counts it.
    pub score: i64,
    /// Virtual CPUs.
    pub free_cpus: i32,
    /// MiB.
    pub free_ram_mb: i32,
    /// GiB.
    pub free_storage_gb: i32,
    /// VM slots.
    pub free_vms: i32,
    /// What turned it away.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gate: String,
    /// Why, to stand after the host's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}
