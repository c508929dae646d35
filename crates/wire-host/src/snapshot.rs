//! Snapshots of a VM: take, list, delete, restore in place, fork.
//!
//! A snapshot is bound to its host and outlives its VM. Everything in a [`Snapshot`] beyond the
//! first four fields is additive: an older agent does not send it.

use serde::{Deserialize, Serialize};

/// `POST /v1/vm/{id}/snapshot`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotRequest {
    /// The id that it is to have; absent: the agent chooses, as one does that is older than this
    /// field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Free text, kept with the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// With the guest's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<bool>,
}

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotKind {
    /// Disk and memory: restoring it resumes the guest where it was.
    Live,
    /// The disk: restoring it boots the guest. Also every kind that this side does not know.
    #[default]
    #[serde(other)]
    Disk,
}

/// A snapshot: the answer of taking one, and an entry of the list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its id on the host.
    pub snapshot_id: String,
    /// SHA-256 of the disk's sparse form, in lower-case hex; proves a transfer, identifies nothing.
    #[serde(default)]
    pub digest: String,
    /// What it holds.
    #[serde(default)]
    pub kind: SnapshotKind,
    /// Bytes that its files take on the host.
    #[serde(default)]
    pub size_bytes: u64,
    /// As given when it was taken.
    #[serde(default)]
    pub comment: String,
    /// When it was taken, RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created_at: String,
    /// The VM it was taken of.
    #[serde(default)]
    pub origin_vm_id: String,
    /// SHA-256 of the base image that the disk is an overlay of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_digest: Option<String>,
    /// How long the guest stood still for it, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// Bytes of disk that were read and written for it; holes and shared blocks are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_bytes: Option<u64>,
}

/// `GET /v1/vm/{id}/snapshots`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SnapshotList {
    /// Snapshots taken of the VM, oldest first.
    pub snapshots: Vec<Snapshot>,
}

/// `POST /v1/vm/{id}/restore`. The snapshot's kind decides between a boot and a resume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreRequest {
    /// The snapshot; required.
    #[serde(default)]
    pub snapshot_id: String,
}

/// Answer of a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreResponse {
    /// Always true.
    pub ok: bool,
    /// Kind of the restored snapshot. After `disk` the guest has booted: `/fuse` is empty and the
    /// public surface does not run.
    #[serde(default)]
    pub kind: SnapshotKind,
    /// The guest kernel's id of the boot that it is in now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Whether a resumed guest has confirmed its new clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_synced: Option<bool>,
}

/// `POST /v1/vm/{id}/fork`: a new VM from a snapshot's disk. Absent sizes are the source's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForkRequest {
    /// The snapshot; required. Of a live one only the disk is used.
    pub snapshot_id: String,
    /// Name of the new VM, as for a create.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Virtual CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Size of the disk in GiB, not below the snapshot's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_gb: Option<u32>,
    /// Free text, kept with the VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Fleet that owns the new VM; absent is the source's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_plain_contract_is_enough() {
        let text = r#"{"snapshot_id":"s","digest":"d","kind":"live","size_bytes":3}"#;
        let snapshot: Snapshot = serde_json::from_str(text).unwrap();
        assert_eq!(
            (snapshot.kind, snapshot.size_bytes),
            (SnapshotKind::Live, 3)
        );
        assert_eq!(snapshot.pause_ms, None);
    }

    #[test]
    fn a_kind_that_is_missing_or_unknown_is_disk() {
        for text in [
            r#"{"snapshot_id":"s"}"#,
            r#"{"snapshot_id":"s","kind":"disk"}"#,
            r#"{"snapshot_id":"s","kind":"later"}"#,
        ] {
            let snapshot: Snapshot = serde_json::from_str(text).unwrap();
            assert_eq!(snapshot.kind, SnapshotKind::Disk, "{text}");
        }
        let text = serde_json::to_string(&SnapshotKind::Disk).unwrap();
        assert_eq!(text, r#""disk""#);
    }

    #[test]
    fn what_callers_of_older_agents_send_is_understood() {
        let text = r#"{"comment":"c","include_ram":false,"live":true}"#;
        let request: SnapshotRequest = serde_json::from_str(text).unwrap();
        assert_eq!(
            (request.comment.as_deref(), request.live),
            (Some("c"), Some(true))
        );
    }
}
