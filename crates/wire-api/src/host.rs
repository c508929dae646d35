//! Hosts: registration and the host object.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Violation, grammar,
    json::{is_zero, null_default, object},
    spec::{check_labels, check_printable},
};

/// `POST /v1/hosts`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RegisterHost {
    /// Chosen by the operator, the primary key.
    #[serde(deserialize_with = "null_default")]
    #[schema(required = true)]
    pub id: String,
    /// Base URL of the agent.
    #[serde(deserialize_with = "null_default")]
    #[schema(required = true)]
    pub url: String,
    /// The agent's own token.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub token: String,
    /// Free text, matched exactly by placement.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub region: String,
    /// `firecracker` (also when empty) or `qemu`.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub backend: String,
    /// Declared, never probed.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    /// Declared capacity; zero = take the probe. Inventories in it are discarded.
    #[serde(deserialize_with = "object")]
    pub capacity: Capacity,
}

impl std::fmt::Debug for RegisterHost {
    /// The token is not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegisterHost")
            .field("id", &self.id)
            .field("url", &self.url)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}

/// What a host has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Capacity {
    /// Virtual CPUs to hand out.
    #[serde(deserialize_with = "null_default")]
    pub cpus: i32,
    /// MiB.
    #[serde(deserialize_with = "null_default")]
    pub ram_mb: i32,
    /// GiB.
    #[serde(deserialize_with = "null_default")]
    pub storage_gb: i32,
    /// Most VMs at a time; policy, never probed.
    #[serde(deserialize_with = "null_default")]
    pub vm_count: i32,
    /// `amd64` or `arm64`.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub arch: String,
    /// Whole GPUs.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub gpus: i32,
    /// Their model.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub gpu_kind: String,
    /// Instances by MIG profile; declared, never probed.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub mig_profiles: BTreeMap<String, i32>,
    /// Carved instances, from the probe only.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_default"
    )]
    pub mig_instances: Vec<MigInstance>,
    /// Devices, from the probe only.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "null_default"
    )]
    pub gpu_devices: Vec<GpuDevice>,
}

/// What is taken of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Allocated {
    /// Virtual CPUs.
    pub cpus: i32,
    /// MiB.
    pub ram_mb: i32,
    /// GiB.
    pub storage_gb: i32,
    /// VMs.
    pub vm_count: i32,
    /// Whole GPUs.
    #[serde(skip_serializing_if = "is_zero")]
    pub gpus: i32,
    /// Their model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gpu_kind: String,
    /// Instances by MIG profile.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mig_profiles: BTreeMap<String, i32>,
    /// Bound instances.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig_instance_uuids: Vec<String>,
}

/// A MIG instance carved on a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct MigInstance {
    /// Instance UUID.
    pub uuid: String,
    /// Profile, lowercase.
    pub profile: String,
    /// Model of the parent.
    pub kind: String,
    /// Parent device.
    pub parent_gpu_uuid: String,
}

/// A GPU of a host (one entry per IOMMU group).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GpuDevice {
    /// Device UUID.
    pub uuid: String,
    /// Model name.
    pub model: String,
    /// PCI address.
    pub pci_bus_id: String,
    /// MiB.
    pub memory_mb: i64,
    /// Driver release.
    pub driver_version: String,
    /// CUDA release.
    pub cuda_version: String,
    /// Compute capability.
    pub compute_cap: String,
    /// Can be partitioned.
    pub mig_capable: bool,
    /// Current partitioning mode.
    pub mig_mode: String,
    /// IOMMU group.
    pub iommu_group: String,
}

/// Whether the control plane reaches the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentStatus {
    /// Outcome of the last contact.
    pub reachable: bool,
    /// When it was tried.
    pub checked_at: Timestamp,
    /// Since when it has answered, or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Release of the agent.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// VMs on the host, those of others included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guests: Option<i64>,
    /// Free disk in GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free_gb: Option<i64>,
    /// Boots that failed there in a row.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_boots: i32,
    /// How the last one failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_boot_error: String,
    /// Since when the host gets no placements for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantined_at: Option<Timestamp>,
}

/// A registered host. Never carries the agent's token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Primary key.
    pub id: String,
    /// Base URL of the agent.
    pub url: String,
    /// Region.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub region: String,
    /// `firecracker` or `qemu`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub backend: String,
    /// Declared pairs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `active`, `cordoned` or `draining`.
    pub state: String,
    /// What is done with its environments while it is `draining`: `migrate` or `drain`;
    /// absent: nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub evict: String,
    /// What it has.
    pub capacity: Capacity,
    /// What is taken.
    pub allocated: Allocated,
    /// Set at registration; not a liveness signal.
    pub last_seen: Timestamp,
    /// First registration.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
    /// Whether the agent answers; absent before the first check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// Only in the answer to a registration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// `GET /v1/hosts`, ordered by id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostList {
    /// One page.
    pub hosts: Vec<Host>,
    /// Where the next page starts; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl RegisterHost {
    /// Checks everything that needs no call to the agent, in contract order, and
    /// normalises backend, architecture, profiles and URL in place.
    ///
    /// # Errors
    /// The first rule broken. The URL itself is checked by `check_url`, which knows
    /// URLs; it ranks right after the presence of `id` and `url`.
    pub fn check(
        &mut self,
        check_url: impl FnOnce(&str) -> Result<(), String>,
    ) -> Result<(), Violation> {
        self.url = self.url.trim().to_owned();
        if self.id.trim().is_empty() || self.url.is_empty() {
            return Err(Violation::invalid("id and url are required"));
        }
        check_printable("id", &self.id)?;
        check_url(&self.url).map_err(|why| Violation::Invalid(format!("url: {why}")))?;
        match self.backend.as_str() {
            "" => "firecracker".clone_into(&mut self.backend),
            "firecracker" | "qemu" => {}
            _ => {
                return Err(Violation::invalid(
                    "backend must be \"firecracker\" or \"qemu\"",
                ));
            }
        }
        check_printable("region", &self.region)?;
        self.check_gpu_and_arch()?;
        check_labels("labels", &self.labels)?;
        self.check_mig_profiles()
    }

    fn check_gpu_and_arch(&mut self) -> Result<(), Violation> {
        let qemu = self.backend == "qemu";
        let capacity = &mut self.capacity;
        if capacity.gpus > 0 && !qemu {
            return Err(Violation::invalid("gpus > 0 requires backend \"qemu\""));
        }
        if capacity.gpus < 0 {
            return Err(Violation::invalid("gpus must not be negative"));
        }
        check_printable("capacity.gpu_kind", &capacity.gpu_kind)?;
        if !capacity.arch.is_empty() {
            let arch = grammar::normalize_arch(&capacity.arch).ok_or_else(|| {
                Violation::Invalid(format!("arch \"{}\" must be amd64 or arm64", capacity.arch))
            })?;
            arch.clone_into(&mut capacity.arch);
        }
        if !capacity.mig_profiles.is_empty() && !qemu {
            return Err(Violation::invalid("mig_profiles requires backend \"qemu\""));
        }
        capacity.gpu_devices.clear();
        capacity.mig_instances.clear();
        Ok(())
    }

    fn check_mig_profiles(&mut self) -> Result<(), Violation> {
        let mut profiles = BTreeMap::new();
        for (given, &count) in &self.capacity.mig_profiles {
            let profile = grammar::normalize_mig_profile(given).ok_or_else(|| {
                Violation::Invalid(format!(
                    "mig_profiles: invalid MIG profile \"{given}\" (expected mig-parted form like \"1g.10gb\")"
                ))
            })?;
            if count <= 0 {
                return Err(Violation::Invalid(format!(
                    "mig_profiles[{given}]: count must be positive"
                )));
            }
            profiles.insert(profile, count);
        }
        self.capacity.mig_profiles = profiles;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> RegisterHost {
        RegisterHost {
            id: "h".into(),
            url: " http://a:1 ".into(),
            ..RegisterHost::default()
        }
    }

    fn message(mut request: RegisterHost) -> String {
        request.check(|_| Ok(())).unwrap_err().to_string()
    }

    #[test]
    fn messages_are_the_contract_texts() {
        let with = |capacity: Capacity| RegisterHost {
            capacity,
            ..request()
        };
        let mig = |profile: &str, count| Capacity {
            mig_profiles: [(profile.to_owned(), count)].into(),
            ..Capacity::default()
        };
        assert_eq!(message(RegisterHost::default()), "id and url are required");
        assert_eq!(
            message(RegisterHost {
                backend: "xen".into(),
                ..request()
            }),
            "backend must be \"firecracker\" or \"qemu\""
        );
        assert_eq!(
            message(with(Capacity {
                gpus: 1,
                ..Capacity::default()
            })),
            "gpus > 0 requires backend \"qemu\""
        );
        assert_eq!(
            message(with(Capacity {
                gpus: -1,
                ..Capacity::default()
            })),
            "gpus must not be negative"
        );
        assert_eq!(
            message(with(mig("1g.10gb", 1))),
            "mig_profiles requires backend \"qemu\""
        );
        let qemu = |capacity| RegisterHost {
            backend: "qemu".into(),
            ..with(capacity)
        };
        assert_eq!(
            message(qemu(mig("foo", 4))),
            "mig_profiles: invalid MIG profile \"foo\" (expected mig-parted form like \"1g.10gb\")"
        );
        assert_eq!(
            message(qemu(mig("1g.10gb", 0))),
            "mig_profiles[1g.10gb]: count must be positive"
        );
        let labels = [("a b".to_owned(), "x".to_owned())].into();
        assert_eq!(
            message(RegisterHost {
                labels,
                ..request()
            }),
            "labels: invalid label key \"a b\""
        );
        let labels = [("a".to_owned(), "x!".to_owned())].into();
        assert_eq!(
            message(RegisterHost {
                labels,
                ..request()
            }),
            "labels[a]: invalid label value \"x!\""
        );
    }

    #[test]
    fn a_bad_url_ranks_before_the_backend() {
        let mut bad = RegisterHost {
            backend: "xen".into(),
            ..request()
        };
        let error = bad
            .check(|_| Err("scheme must be http or https".into()))
            .unwrap_err();
        assert_eq!(error.to_string(), "url: scheme must be http or https");
    }

    #[test]
    fn the_request_is_normalised() {
        let mut given = RegisterHost {
            backend: "qemu".into(),
            capacity: Capacity {
                arch: "x86_64".into(),
                mig_profiles: [("1G.10GB".to_owned(), 2)].into(),
                gpu_devices: vec![GpuDevice::default()],
                ..Capacity::default()
            },
            ..request()
        };
        given
            .check(|url| (url == "http://a:1").then_some(()).ok_or_else(String::new))
            .unwrap();
        assert_eq!(given.capacity.arch, "amd64");
        assert_eq!(
            given.capacity.mig_profiles,
            [("1g.10gb".to_owned(), 2)].into()
        );
        assert!(given.capacity.gpu_devices.is_empty());

        let mut plain = request();
        plain.check(|_| Ok(())).unwrap();
        assert_eq!(plain.backend, "firecracker");
    }

    #[test]
    fn the_token_is_not_in_debug_output() {
        let request = RegisterHost {
            token: "hunter2".into(),
            ..request()
        };
        assert!(!format!("{request:?}").contains("hunter2"));
    }

    #[test]
    fn scalars_are_always_written() {
        assert_eq!(
            serde_json::to_string(&Capacity::default()).unwrap(),
            r#"{"cpus":0,"ram_mb":0,"storage_gb":0,"vm_count":0}"#
        );
    }
}
