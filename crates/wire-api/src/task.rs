//! `GET /v1/tasks/{task_id}`: what became of a task, readable after its environment is gone.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A task record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// The id that the caller chose.
    pub task_id: String,
    /// The environment that runs or ran it.
    pub vm_id: String,
    /// `assigned`, `running`, `completed` or `failed`.
    pub run_status: String,
    /// Why it failed; secret values redacted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_error: String,
    /// What the startup script wrote, kept for tasks that had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<TaskOutput>,
    /// What is kept of a create that failed, for 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<TaskFailure>,
    /// When the environment was created.
    pub assigned_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

/// Output of a startup script: the last 256 KiB of each stream, secret values redacted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskOutput {
    /// Exit status; 90 means that the build phase failed.
    pub exit_code: i32,
    /// Tail of standard output.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stdout: String,
    /// Tail of standard error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
}

/// What is kept of a create that failed. Console and guest agent's log are read by
/// `GET /v1/tasks/{id}/logs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskFailure {
    /// The step that failed, such as `placement`, `boot`, `upload`, `script` or `start-agent`.
    pub step: String,
    /// How the environment was placed.
    pub placement: TaskPlacement,
    /// The steps that were begun, in order, and how long each took.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timings: Vec<StepTiming>,
    /// Bytes of the guest's console that are kept.
    pub console_bytes: u64,
    /// Bytes of the guest agent's log that are kept.
    pub agent_bytes: u64,
    /// When it is forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<Timestamp>,
}

/// How an environment was placed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskPlacement {
    /// The chosen host; absent when there was none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// `spread` or `binpack`; a fork is placed by its source: `fork`.
    pub policy: String,
    /// Hosts that could take it.
    pub candidates: u64,
    /// Hosts that each rule turned away, when none was left.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<String, String>,
}

/// How long a step took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepTiming {
    /// Its name; steps of the host begin with `host.`.
    pub step: String,
    /// In milliseconds.
    pub duration_ms: f64,
}

/// Query of `GET /v1/environments/{vmId}/logs` and `GET /v1/tasks/{id}/logs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LogQuery {
    /// `startup` (the default), `console` or `agent`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Of the startup script: `build` or `run`; empty is both.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Go on with what comes; for environments only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
}
