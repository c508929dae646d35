//! What a VM printed, and what is known of a create that failed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::vm::CreateTimings;

/// Most bytes of a log that are handed out from its past.
pub const MAX_LOG_BYTES: usize = 256 * 1024;

/// Which output of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogSource {
    /// The guest's serial console, with what the VMM says itself.
    Console,
    /// The log of the guest agent since the guest's boot.
    Agent,
}

impl LogSource {
    /// The value of `source`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Agent => "agent",
        }
    }
}

impl fmt::Display for LogSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LogSource {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "console" => Ok(Self::Console),
            "agent" => Ok(Self::Agent),
            _ => Err(()),
        }
    }
}

/// `GET /v1/vm/{id}/failure`: the last failed create of that name, as long as the agent remembers it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FailedCreate {
    /// Id of the VM that did not come to be.
    pub vm_id: String,
    /// Owner tag of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// When it failed (RFC 3339).
    pub failed_at: String,
    /// Why, with its causes.
    pub error: String,
    /// How long the steps took that were begun.
    pub timings_ms: CreateTimings,
    /// The last [`MAX_LOG_BYTES`] of the console, as text.
    #[serde(default)]
    pub console: String,
}
