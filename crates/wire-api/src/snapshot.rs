//! Snapshots, and the fork that is made of one.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Violation,
    json::{is_zero, null_default},
};

/// `POST /v1/environments/{id}/snapshots`. The body may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CreateSnapshot {
    /// What it is for.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub comment: String,
    /// `manual` (default), `auto`, `build`, or a word of the caller's.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub mode: String,
    /// Above zero: it may be collected after this time; else the server's default.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub retention_seconds: i64,
    /// Anything worth remembering; `name` is what it can be looked up by.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub metadata: BTreeMap<String, String>,
    /// Marks a build layer.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub layer_key: String,
    /// A copy elsewhere to be recorded; nothing is copied.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub export_ref: String,
    /// How far that copy is; `pending` when not given.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub export_status: String,
    /// With memory and processors.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub live: bool,
}

/// A snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Snapshot {
    /// Its id.
    #[schema(required = true)]
    pub id: String,
    /// The environment that it was taken of; empty on a copied artifact.
    #[schema(required = true)]
    pub vm_id: String,
    /// The environment's task.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub task_id: String,
    /// Whose quota it counts against.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_id: String,
    /// The snapshot of the same environment before it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parent_snapshot_id: String,
    /// Where its bytes are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// `manual`, `auto`, `build` or the caller's word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// `creating`, `ready`, `restoring`, `deleting` or `error`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// `disk` or `live`.
    #[schema(required = true)]
    pub kind: String,
    /// From the metadata.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// From the metadata.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What was given along when it was taken, comment and name included; shown to the API key that
    /// took it and to the master.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Key of the build layer that it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub layer_key: String,
    /// Architecture of its host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub arch: String,
    /// SHA-256 of its disk; proves a transfer, identifies nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Bytes on its host.
    #[serde(skip_serializing_if = "is_zero")]
    pub size_bytes: u64,
    /// When it was taken.
    #[schema(required = true)]
    pub created_at: Timestamp,
    /// When its record last changed.
    #[schema(required = true)]
    pub updated_at: Timestamp,
    /// When it may be collected; absent = never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_until: Option<Timestamp>,
    /// Last failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_error: String,
    /// The first export's destination.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub export_ref: String,
    /// Recorded copies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<SnapshotExport>,
}

/// A recorded copy of a snapshot elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SnapshotExport {
    /// Where to.
    #[schema(required = true)]
    pub destination: String,
    /// How far it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// When it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Timestamp>,
    /// When the record last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}

/// `GET /v1/snapshots`, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// One page.
    pub snapshots: Vec<Snapshot>,
    /// Where the next page starts; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `GET /v1/snapshots/resolve`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResolvedSnapshot {
    /// Whether there is one.
    pub found: bool,
    /// The newest usable layer with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// What the caller has instead of it: the key for another architecture, or on its way out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub miss_detail: Vec<String>,
    /// Whose layers were looked through; absent for the master, whose layers have no tenant.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant_id: String,
}

/// `POST /v1/environments/{id}?action=fork`. The body may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ForkEnvironment {
    /// A snapshot of the source to start from, instead of a fresh one.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub reuse_snapshot_id: String,
    /// What the fresh snapshot is for.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub comment: String,
    /// Refuse when the source's host has no room, instead of taking more than it has.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub require_capacity: bool,
}

/// `POST /v1/environments/{id}?action=migrate`. The body may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct MigrateEnvironment {
    /// Where to; empty: the orchestrator chooses.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub target_host_id: String,
    /// With its memory, so that nothing in it is restarted.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub live: bool,
    /// Goes on at the target before all of its memory is there; with `live`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub lazy: bool,
}

impl MigrateEnvironment {
    /// Checks what can be told from the request alone.
    ///
    /// # Errors
    /// `lazy` without `live`.
    pub fn check(&self) -> Result<(), Violation> {
        if self.lazy && !self.live {
            return Err(Violation::invalid("lazy requires live"));
        }
        Ok(())
    }
}

/// Query of `GET /v1/snapshots`. Filters are exact; an empty value means no filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ListSnapshots {
    /// Only of this environment.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vm_id: String,
    /// Only of this task.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub task_id: String,
    /// Only of this tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_id: String,
    /// Only in this state.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Only of this mode.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// Only with this name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Only layers with this key.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub layer_key: String,
    /// Only of this architecture.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub arch: String,
    /// Only on this host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// Page size; text, because an unparseable number means the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Where the last page ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Cursor of the list of snapshots: the last one shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCursor {
    /// When it was taken.
    pub created_at: Timestamp,
    /// Its id.
    pub id: String,
}

impl SnapshotCursor {
    /// The opaque wire form: base64url without padding of a small JSON object.
    #[must_use]
    pub fn encode(&self) -> String {
        // A time and a string always serialise.
        BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Reads a cursor from a query; empty means "from the start".
    ///
    /// # Errors
    /// `invalid pagination cursor` when it cannot be decoded.
    pub fn decode(text: Option<&str>) -> Result<Option<Self>, Violation> {
        let Some(text) = text.filter(|t| !t.is_empty()) else {
            return Ok(None);
        };
        let bad = || Violation::invalid("invalid pagination cursor");
        let json = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
        // Through a map: serde would also take an array for the struct.
        let map: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&json).map_err(|_| bad())?;
        let cursor = serde_json::from_value(map.into()).map_err(|_| bad())?;
        Ok(Some(cursor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_the_wire() {
        let cursor = SnapshotCursor {
            created_at: "2026-01-15T10:00:00.123456Z".parse().unwrap(),
            id: "snap-1-abcdef".to_owned(),
        };
        assert_eq!(
            SnapshotCursor::decode(Some(&cursor.encode())),
            Ok(Some(cursor))
        );
        assert_eq!(SnapshotCursor::decode(None), Ok(None));
        for bad in ["!", "AAAA", &BASE64_URL_SAFE_NO_PAD.encode(r#"{"id":"a"}"#)] {
            assert!(SnapshotCursor::decode(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_empty_is_absent() {
        let snapshot = Snapshot {
            id: "s".to_owned(),
            vm_id: "v".to_owned(),
            kind: "disk".to_owned(),
            ..Snapshot::default()
        };
        assert_eq!(
            serde_json::to_string(&snapshot).unwrap(),
            r#"{"id":"s","vm_id":"v","kind":"disk","created_at":"1970-01-01T00:00:00Z","updated_at":"1970-01-01T00:00:00Z"}"#
        );
        let missed = serde_json::to_string(&ResolvedSnapshot::default()).unwrap();
        assert_eq!(missed, r#"{"found":false}"#);
        let fork: ForkEnvironment = crate::decode(b"{\"comment\":null}").unwrap();
        assert_eq!(fork, ForkEnvironment::default());
    }
}
