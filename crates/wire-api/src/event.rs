//! Records of `GET /v1/environments/{id}/events`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::json::is_zero;

/// `event` of a lifecycle transition.
pub const KIND_STATE: &str = "state";
/// `event` of a finished build or run step.
pub const KIND_STEP: &str = "step";

/// `event` of a service of the manifest that changed while the services came up.
pub const KIND_SERVICE: &str = "service";

/// One record of an event stream. Only [`KIND_STATE`] moves an environment's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// 32 lowercase hex digits, the same as the SSE id.
    pub id: String,
    /// The kind; an absent one means [`KIND_STATE`].
    #[serde(default = "kind_state")]
    #[schema(required = true)]
    pub event: String,
    /// The environment.
    pub vm_id: String,
    /// Lifecycle value, including the stream-only `destroyed` and `failed`; empty on steps and services.
    #[serde(default)]
    #[schema(required = true)]
    pub state: String,
    /// `host:port` of the guest agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Failure text, secret values redacted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// When it happened.
    pub updated_at: Timestamp,
    /// Step events: position, counted from 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub index: u32,
    /// Step events: number of steps.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub total: u32,
    /// Step events: layer key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Step events: taken from the cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached: bool,
    /// Step events: why it was not in the cache.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub miss_reason: String,
    /// Step events: what changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub miss_detail: Vec<String>,
    /// Service events: name of the service.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Service events: `started`, `healthy`, `unhealthy`, `exited` (with success) or `failed`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Step events: how long it took, in milliseconds. Service events: since the services began to come up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub duration_ms: u64,
    /// Step and service events: exit status.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub exit_code: i32,
}

fn kind_state() -> String {
    KIND_STATE.to_owned()
}

impl Event {
    /// A lifecycle record.
    #[must_use]
    pub fn state(id: String, vm_id: String, state: &str, updated_at: Timestamp) -> Self {
        Self {
            id,
            event: kind_state(),
            vm_id,
            state: state.to_owned(),
            url: String::new(),
            error: String::new(),
            updated_at,
            index: 0,
            total: 0,
            key: String::new(),
            cached: false,
            miss_reason: String::new(),
            miss_detail: Vec::new(),
            service: String::new(),
            status: String::new(),
            duration_ms: 0,
            exit_code: 0,
        }
    }

    /// After a terminal record the stream ends.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.event == KIND_STATE && matches!(self.state.as_str(), "destroyed" | "failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_record_has_only_its_fields() {
        let at: Timestamp = "2026-01-15T10:00:00Z".parse().unwrap();
        let event = Event::state("ab".into(), "fuse-a".into(), "running", at);
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"id":"ab","event":"state","vm_id":"fuse-a","state":"running","updated_at":"2026-01-15T10:00:00Z"}"#
        );
        assert!(!event.is_terminal());
    }

    #[test]
    fn an_absent_kind_is_a_state() {
        let event: Event = serde_json::from_str(
            r#"{"id":"1","vm_id":"v","state":"destroyed","updated_at":"2026-01-15T10:00:00Z"}"#,
        )
        .unwrap();
        assert!(event.is_terminal());
    }
}
