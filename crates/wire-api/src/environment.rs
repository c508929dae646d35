//! The environment object and its list.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Spec, json::is_zero};

/// One microVM and the task in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Environment {
    /// VM id.
    pub id: String,
    /// `provisioning`, `running`, `draining` or `destroying`.
    pub state: String,
    /// The caller's id; empty once teardown starts.
    #[serde(default)]
    #[schema(required = true)]
    pub task_id: String,
    /// Absent while unscheduled, and on the default backend.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// `host:port` of the guest agent; empty before `running`.
    #[serde(default)]
    #[schema(required = true)]
    pub url: String,
    /// As requested.
    #[serde(default)]
    #[schema(required = true)]
    pub spec: Spec,
    /// When the request was accepted.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Last failure text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Published ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// Release of the agent in the guest; absent before it has said so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub guest_version: String,
    /// Verdict of the probe; absent without one, and before the first verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// How the guest reaches the outside.
    #[serde(default)]
    #[schema(required = true)]
    pub egress: EgressStatus,
    /// What whoever asked for it should know; only in the answer of a fork.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A published port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Endpoint {
    /// Name given in the request.
    #[serde(rename = "as", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `host:port` to dial.
    #[schema(required = true)]
    pub url: String,
    /// Transport that is really published; absent = tcp.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Guest port.
    #[schema(required = true)]
    pub port: u16,
}

/// Verdict of the guest's probe. Never a lifecycle state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `starting`, `passing` or `failing`.
    pub state: String,
    /// When the state was entered.
    pub since: Timestamp,
    /// Failures in a row.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// What the last failure said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Egress as it is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressStatus {
    /// `direct` or `proxy`.
    pub mode: String,
    /// Which proxy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub provider: String,
    /// `socks5` or `http`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Address on the host; never a credential.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// State of the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<EgressHealth>,
}

impl Default for EgressStatus {
    fn default() -> Self {
        Self {
            mode: "direct".to_owned(),
            provider: String::new(),
            protocol: String::new(),
            endpoint: String::new(),
            health: None,
        }
    }
}

/// State of an egress proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressHealth {
    /// `unknown`, `healthy` or `unhealthy`.
    pub state: String,
    /// Why it is not healthy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Last probe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
}

/// `GET /v1/environments`, ordered by id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvironmentList {
    /// One page.
    pub environments: Vec<Environment>,
    /// Where the next page starts; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Query of `GET /v1/environments`. Filters are exact; an empty value means no filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListEnvironments {
    /// Only this task.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub task_id: String,
    /// Only this state.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Only this host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// Page size; text, because an unparseable number means the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Where the last page ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_fields_are_absent_and_required_ones_stay() {
        let at: Timestamp = "2026-01-15T10:00:00Z".parse().unwrap();
        let environment = Environment {
            id: "fuse-a".into(),
            state: "provisioning".into(),
            task_id: String::new(),
            host_id: String::new(),
            url: String::new(),
            spec: Spec {
                cpus: 2,
                ..Spec::default()
            },
            created_at: at,
            updated_at: at,
            error: String::new(),
            endpoints: Vec::new(),
            guest_version: String::new(),
            health: None,
            egress: EgressStatus::default(),
            warnings: Vec::new(),
        };
        let text = serde_json::to_string(&environment).unwrap();
        assert_eq!(
            text,
            r#"{"id":"fuse-a","state":"provisioning","task_id":"","url":"","spec":{"cpus":2},"created_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z","egress":{"mode":"direct"}}"#
        );
        assert_eq!(
            serde_json::from_str::<Environment>(&text).unwrap(),
            environment
        );
    }

    #[test]
    fn endpoints_name_only_what_is_known() {
        let endpoint = Endpoint {
            url: "1.2.3.4:5".into(),
            port: 80,
            ..Endpoint::default()
        };
        assert_eq!(
            serde_json::to_string(&endpoint).unwrap(),
            r#"{"url":"1.2.3.4:5","port":80}"#
        );
    }

    #[test]
    fn an_empty_list_has_its_array() {
        let list = EnvironmentList::default();
        assert_eq!(
            serde_json::to_string(&list).unwrap(),
            r#"{"environments":[]}"#
        );
    }
}
