//! VMs on a host: create, get, list, delete.
//!
//! Everything beyond `vm_id` and `url` in an answer is additive: an older agent does not send it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `POST /v1/vm`.
///
/// Absent and zero mean "the agent's default" everywhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateVmRequest {
    /// Wanted name; the id is derived from it ([`crate::name::vm_id`]). Absent: `vm-` + 8 hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Virtual CPUs; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory in MiB; default 512 on Firecracker hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Size of the VM's writable disk in GiB; default set by the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_gb: Option<u32>,
    /// Free text, kept with the VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Named image; absent or empty is the agent's default image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Fleet that owns the VM. VMs of another owner are never touched by a control plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Snapshot of this host whose disk the VM starts with; wins over [`Self::image`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed_snapshot: Option<String>,
    /// Back the guest's memory with 2 MiB pages, which the host must have reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<bool>,
    /// Whole GPUs, or instances of [`Self::gpu_profile`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Kind of the GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_kind: Option<String>,
    /// Profile of the GPU instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_profile: Option<String>,
    /// Exactly these GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub gpu_uuids: Vec<String>,
    /// Exactly these GPU instances.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub mig_instance_uuids: Vec<String>,
}

fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// What a VM is doing, as its host sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// Being made; the create call has not been answered yet.
    Creating,
    /// The VMM runs and the guest has answered.
    Running,
    /// Was made earlier, its VMM is gone, and its host is booting it again with the same disk and
    /// addresses. Running or stopped comes next.
    Booting,
    /// The VMM process is gone; the disk is still there.
    Stopped,
    /// Being removed.
    Deleting,
    /// A state this side does not know.
    #[serde(other)]
    Unknown,
}

/// One VM: the answer of create and get, and an entry of the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VmView {
    /// Id of the VM on its host.
    pub vm_id: String,
    /// `<public host>:<host port>` of the guest agent's public surface, no scheme.
    pub url: String,
    /// Name as requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Fleet that owns the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What it is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<VmState>,
    /// The guest kernel's id of its current boot: it changes when the host boots the VM again, which
    /// loses what was in memory, `/fuse` and its credentials included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Release of the agent in the guest, as [`guest_version`] lets it through: a guest that came out
    /// of a live snapshot goes on with the one it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_version: Option<String>,
    /// How long the steps of its create took; only in the answer of create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings_ms: Option<CreateTimings>,
}

/// Longest release of a guest's agent that is believed.
const MAX_GUEST_VERSION: usize = 64;

/// What a guest says of its agent's release, if it looks like one: it is the guest's own word, and
/// goes into tables, lists and terminals.
#[must_use]
pub fn guest_version(said: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '_');
    let believed = (1..=MAX_GUEST_VERSION).contains(&said.len()) && said.chars().all(plain);
    believed.then(|| said.to_owned())
}

/// Duration of each step of a create in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateTimings {
    /// The host's own work before the VMM was told to boot, without waiting for a turn.
    pub host: f64,
    /// Waiting for a turn to boot.
    pub queued: f64,
    /// From the boot command to the guest's answer.
    pub boot: f64,
    /// The whole call.
    pub total: f64,
    /// Each step by name.
    #[serde(default)]
    pub steps: BTreeMap<String, f64>,
}

/// `GET /v1/vm?prefix=`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmList {
    /// The VMs whose name starts with the prefix, sorted by id.
    pub vms: Vec<VmView>,
    /// Release of the agent; agents that do not say are older than this field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_plain_contract_is_enough() {
        let view: VmView = serde_json::from_str(r#"{"vm_id":"a","url":"h:1"}"#).unwrap();
        assert_eq!(view.state, None);
        let text = serde_json::to_string(&view).unwrap();
        assert_eq!(text, r#"{"vm_id":"a","url":"h:1"}"#);
    }

    #[test]
    fn a_newer_state_is_unknown_rather_than_an_error() {
        let view: VmView =
            serde_json::from_str(r#"{"vm_id":"a","url":"h:1","state":"paused"}"#).unwrap();
        assert_eq!(view.state, Some(VmState::Unknown));
    }

    #[test]
    fn nulls_and_unknown_fields_are_defaults() {
        let request: CreateVmRequest =
            serde_json::from_str(r#"{"name":null,"cpus":null,"gpu_uuids":null,"later":true}"#)
                .unwrap();
        assert_eq!(request, CreateVmRequest::default());
    }

    #[test]
    fn a_guest_says_a_release_or_nothing() {
        for said in ["dev", "0.1.0", "1.2.0-rc.1+g1a2b_3"] {
            assert_eq!(guest_version(said).as_deref(), Some(said));
        }
        let long = "1".repeat(MAX_GUEST_VERSION + 1);
        for said in ["", "1 0", "1\n2", "\u{1b}[31m1", "é", long.as_str()] {
            assert_eq!(guest_version(said), None, "{said:?}");
        }
    }

    #[test]
    fn negative_sizes_are_refused() {
        assert!(serde_json::from_str::<CreateVmRequest>(r#"{"cpus":-1}"#).is_err());
    }
}
