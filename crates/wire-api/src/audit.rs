//! `GET /v1/audit` and `GET /v1/dead-letters`: what happened, and what was given up on.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEvent {
    /// What it is about: `vm`, `task`, `host` or `api`.
    pub entity_type: String,
    /// Which one.
    pub entity_id: String,
    /// What happened, such as `vm.running`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Details; never a secret, a token or a key.
    #[schema(value_type = Object)]
    pub payload: Map<String, Value>,
    /// When.
    pub created_at: Timestamp,
}

/// `GET /v1/audit`: newest first. Filters: `entity_type`, `entity_id`, `type`, `since`
/// and `until` (RFC 3339; from `since` on, before `until`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEventList {
    /// The entries.
    pub audit_events: Vec<AuditEvent>,
    /// Where the next page starts; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Something that was given up on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeadLetter {
    /// `orphan_destroy`, `stuck_task` or `idle_timeout`.
    pub kind: String,
    /// Id of the VM.
    pub entity_id: String,
    /// The task that it had.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task_id: String,
    /// Why.
    pub reason: String,
    /// Failed attempts.
    pub retry_count: u32,
    /// Details.
    #[schema(value_type = Object)]
    pub payload: Map<String, Value>,
    /// When it was noted first.
    pub first_seen_at: Timestamp,
    /// When it was noted last.
    pub last_seen_at: Timestamp,
}

/// `GET /v1/dead-letters`, by kind and entity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterList {
    /// The dead letters.
    pub dead_letters: Vec<DeadLetter>,
    /// Where the next page starts; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
