//! The compiled request: the body of `POST /v1/environments` as the command line shows and sends it.
//!
//! Key order and omission rules are part of the format (two runs over one file print the same bytes),
//! so the order of the fields below is the order on the wire. Written by [`Compiled::request`].
//!
//! [`Compiled::request`]: crate::Compiled::request

use std::collections::BTreeMap;

use serde::Serialize;

use super::{json, yaml_text};

/// What a create sends, without the values of secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Task id; always sent.
    pub task_id: String,
    /// Machine size and placement; always sent, `{}` when the host decides everything.
    pub spec: Spec,
    /// The manifest in standard base64.
    pub manifest_inline: String,
    /// Always empty here: values travel in the real create only.
    pub secrets: BTreeMap<String, String>,
    /// Absolute guest path → standard base64 of the copied files.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// Script to run at boot; empty when there is nothing to run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub startup_script: String,
    /// Ports to publish, in the author's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<ExposedPort>,
    /// The probe that the guest agent runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Probe>,
    /// Size of the virtual display.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desktop: Option<Geometry>,
    /// Snapshot to boot from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub seed_snapshot_id: String,
    /// Bound of the startup script; 0 = the server's default.
    #[serde(skip_serializing_if = "is_zero")]
    pub startup_script_timeout_seconds: i64,
    /// Names of the secrets that must be supplied; for display, never posted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_secrets: Vec<String>,
}

/// `spec` of the request. Zero and empty mean that the host decides and are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Spec {
    /// Whole virtual CPUs.
    #[serde(skip_serializing_if = "is_zero32")]
    pub cpus: i32,
    /// Memory in MiB.
    #[serde(skip_serializing_if = "is_zero")]
    pub ram_mb: i64,
    /// Disk in GiB, rounded up.
    #[serde(skip_serializing_if = "is_zero")]
    pub storage_gb: i64,
    /// Whole devices, or MIG instances when `gpu_profile` is set.
    #[serde(skip_serializing_if = "is_zero")]
    pub gpus: i64,
    /// As written.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gpu_kind: String,
    /// Lowercase.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gpu_profile: String,
    /// Exact region of the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// Not authorable; set by the command line for a cache hit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub arch: String,
    /// Ceiling from create, in seconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_runtime_seconds: i64,
    /// Seconds without exec or attach after which it is destroyed.
    #[serde(skip_serializing_if = "is_zero")]
    pub idle_timeout_seconds: i64,
    /// Name of a root file system on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Exact host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// Host labels that must all match.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// One of `expose`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExposedPort {
    /// Guest port, 1–65535.
    pub port: i64,
    /// Name of the endpoint; empty when not named.
    #[serde(rename = "as", skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// `healthcheck` of the request; zeros mean the guest agent's defaults and are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Probe {
    /// GET on the guest's loopback; exclusive with `exec`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpGet>,
    /// Arguments; exit 0 passes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exec: Vec<String>,
    /// Seconds between probes.
    #[serde(skip_serializing_if = "is_zero")]
    pub interval_seconds: i64,
    /// Seconds a probe may take.
    #[serde(skip_serializing_if = "is_zero")]
    pub timeout_seconds: i64,
    /// Failures in a row before the verdict changes.
    #[serde(skip_serializing_if = "is_zero")]
    pub retries: i64,
    /// Seconds of grace after boot.
    #[serde(skip_serializing_if = "is_zero")]
    pub start_period_seconds: i64,
}

/// `healthcheck.http` of the request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HttpGet {
    /// Guest port, 1–65535.
    pub port: i64,
    /// Path; empty = `/`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
}

/// `desktop` of the request, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Width.
    pub width: i64,
    /// Height.
    pub height: i64,
}

impl Request {
    /// The JSON form: two spaces of indent, keys in the format's order, a newline at the end.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = json::pretty(self);
        text.push('\n');
        text
    }

    /// The YAML form: the keys of the JSON form in their order, text of several lines as literal blocks.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        // Plain data with string keys: it always has a value.
        yaml_text::render(&serde_json::to_value(self).unwrap_or_default())
    }
}

impl Spec {
    /// The JSON form, as `--only spec` prints it.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = json::pretty(self);
        text.push('\n');
        text
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(n: &i64) -> bool {
    *n == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero32(n: &i32) -> bool {
    *n == 0
}
