//! The task of an environment. It outlives the environment, with its outcome.

use jiff::Timestamp;

use crate::names::named;
use crate::{EnvironmentId, TaskId};

/// How far a task got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskStatus {
    /// Its environment is being made.
    Assigned,
    /// Its environment runs.
    Running,
    /// It was reported as done.
    Completed,
    /// It ended in any other way; the text says how.
    Failed,
}

impl TaskStatus {
    const ALL: [Self; 4] = [Self::Assigned, Self::Running, Self::Completed, Self::Failed];

    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

named!(TaskStatus, "task status");

/// A task record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The caller's id.
    pub id: TaskId,
    /// The environment that it ran in last.
    pub environment_id: EnvironmentId,
    /// Whose it is: an API key's id, empty for the master.
    pub owner: String,
    /// How far it got.
    pub status: TaskStatus,
    /// Why it failed, redacted; empty otherwise.
    pub last_error: String,
    /// When its environment was accepted.
    pub assigned_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// What a startup script wrote: the tail of each stream, redacted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskOutput {
    /// Its exit status.
    pub exit_code: i32,
    /// Tail of standard output.
    pub stdout: String,
    /// Tail of standard error.
    pub stderr: String,
}

/// The end of what was written, and how much that was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogTail {
    /// The last part, redacted.
    pub text: String,
    /// Bytes of redacted text from the begin on; more than the text has once its head was dropped.
    pub written: u64,
}

/// Both output streams of a startup script in the order they came, by phase.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskLog {
    /// What the build steps wrote.
    pub build: LogTail,
    /// What the rest wrote.
    pub run: LogTail,
    /// Whether the script has ended.
    pub ended: bool,
}

/// What is kept of a create that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFailure {
    /// Which steps it took and how it was placed, as the API tells it (JSON).
    pub report: String,
    /// The end of the guest's console, redacted.
    pub console: String,
    /// The log of the guest agent, redacted.
    pub agent: String,
    /// When it is forgotten.
    pub kept_until: Timestamp,
}
