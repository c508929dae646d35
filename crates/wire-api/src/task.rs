//! `GET /v1/tasks/{task_id}`: what became of a task, readable after its environment is gone.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A task record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
