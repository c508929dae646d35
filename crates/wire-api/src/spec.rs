//! The resource and placement wishes of an environment, and their checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Violation, grammar,
    json::{is_zero, null_default},
};

/// GPU models without MIG; a profile on one of them can never be filled.
const KINDS_WITHOUT_MIG: [&str; 11] = [
    "v100", "t4", "p100", "p40", "k80", "rtx", "gtx", "titan", "l4", "l40", "l40s",
];

/// Shortest idle timeout that is accepted (seconds); 0 means the fleet default.
const MIN_IDLE_SECONDS: i64 = 60;

/// What an environment asks for. The same object stands in requests and answers;
/// zero and empty fields are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Spec {
    /// Virtual CPUs; 0 = agent default (1).
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    #[schema(minimum = 0)]
    pub cpus: i32,
    /// Memory in MiB; 0 = agent default (512).
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    #[schema(minimum = 0)]
    pub ram_mb: i32,
    /// Disk in GiB; 0 = agent default.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    #[schema(minimum = 0)]
    pub storage_gb: i32,
    /// Exact region of the host; empty = any.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub region: String,
    /// `amd64` or `arm64` (aliases accepted); empty = any.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub arch: String,
    /// Runtime ceiling in seconds; 0 = fleet default, never unlimited.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    #[schema(minimum = 0)]
    pub max_runtime_seconds: i64,
    /// Idle limit in seconds, 0 or >= 60; 0 = fleet default.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    #[schema(minimum = 0)]
    pub idle_timeout_seconds: i64,
    /// Image name on the host; empty = host default.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub image: String,
    /// Whole GPUs, or MIG instances when `gpu_profile` is set.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    #[schema(minimum = 0)]
    pub gpus: i32,
    /// GPU model to match; empty = any.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub gpu_kind: String,
    /// MIG profile, e.g. `1g.10gb`; lowercase once checked.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub gpu_profile: String,
    /// Hard pin to one registered host.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub host_id: String,
    /// Pairs that the host must carry.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    /// Back guest memory with 2 MiB pages.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub huge_pages: bool,
}

impl Spec {
    /// Sizes, GPU wishes, architecture and labels, in this order. Normalises
    /// `arch` and `gpu_profile` in place.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn check_placement(&mut self) -> Result<(), Violation> {
        self.check_gpu()?;
        self.check_sizes()?;
        check_labels("spec.labels", &self.labels)?;
        for (field, text) in [
            ("region", &self.region),
            ("image", &self.image),
            ("host_id", &self.host_id),
        ] {
            check_printable(&format!("spec.{field}"), text)?;
        }
        Ok(())
    }

    fn check_gpu(&mut self) -> Result<(), Violation> {
        if self.gpus < 0 {
            return Err(Violation::invalid("spec.gpus must not be negative"));
        }
        check_printable("spec.gpu_kind", &self.gpu_kind)?;
        if self.gpu_profile.is_empty() {
            return Ok(());
        }
        let Some(profile) = grammar::normalize_mig_profile(&self.gpu_profile) else {
            return Err(Violation::Invalid(format!(
                "spec.gpu_profile: invalid MIG profile \"{}\" (expected mig-parted form like \"1g.10gb\")",
                self.gpu_profile
            )));
        };
        self.gpu_profile = profile;
        if self.gpus < 1 {
            return Err(Violation::invalid(
                "spec.gpu_profile requires spec.gpus >= 1 (the count of MIG instances)",
            ));
        }
        let kind = self.gpu_kind.to_lowercase();
        if let Some(model) = KINDS_WITHOUT_MIG
            .iter()
            .find(|model| kind.contains(**model))
        {
            return Err(Violation::Invalid(format!(
                "spec.gpu_profile: gpu_kind \"{}\" does not support MIG ({model}); drop gpu_profile or choose another kind",
                self.gpu_kind
            )));
        }
        Ok(())
    }

    fn check_sizes(&mut self) -> Result<(), Violation> {
        for (field, value) in [
            ("cpus", self.cpus),
            ("ram_mb", self.ram_mb),
            ("storage_gb", self.storage_gb),
        ] {
            if value < 0 {
                return Err(Violation::Invalid(format!(
                    "spec.{field} must not be negative"
                )));
            }
        }
        if self.arch.is_empty() {
            return Ok(());
        }
        match grammar::normalize_arch(&self.arch) {
            Some(arch) => arch.clone_into(&mut self.arch),
            None if self.arch.trim().is_empty() => self.arch.clear(),
            None => {
                return Err(Violation::Invalid(format!(
                    "spec.arch: unknown architecture \"{}\" (expected amd64 or arm64)",
                    self.arch
                )));
            }
        }
        Ok(())
    }

    /// `max_runtime_seconds` and `idle_timeout_seconds`.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn check_timeouts(&self) -> Result<(), Violation> {
        if self.max_runtime_seconds < 0 {
            return Err(Violation::invalid(
                "spec.max_runtime_seconds must not be negative",
            ));
        }
        if self.idle_timeout_seconds != 0 && self.idle_timeout_seconds < MIN_IDLE_SECONDS {
            return Err(Violation::invalid(
                "spec.idle_timeout_seconds must be 0 (fleet default) or at least 60",
            ));
        }
        Ok(())
    }
}

/// Every key and value must match the label grammar; `field` is the path in messages.
pub(crate) fn check_labels(
    field: &str,
    labels: &BTreeMap<String, String>,
) -> Result<(), Violation> {
    for (key, value) in labels {
        if !grammar::is_label_part(key) {
            return Err(Violation::Invalid(format!(
                "{field}: invalid label key \"{key}\""
            )));
        }
        if !grammar::is_label_part(value) {
            return Err(Violation::Invalid(format!(
                "{field}[{key}]: invalid label value \"{value}\""
            )));
        }
    }
    Ok(())
}

/// Names end up in logs, SQL text columns and file names: no control characters.
pub(crate) fn check_printable(field: &str, text: &str) -> Result<(), Violation> {
    if text.chars().any(char::is_control) {
        return Err(Violation::Invalid(format!(
            "{field} must not contain control characters"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(spec: Spec) -> String {
        let mut spec = spec;
        spec.check_placement().unwrap_err().to_string()
    }

    #[test]
    fn gpu_messages_are_the_contract_texts() {
        let base = Spec::default;
        assert_eq!(
            message(Spec { gpus: -1, ..base() }),
            "spec.gpus must not be negative"
        );
        assert_eq!(
            message(Spec {
                gpu_profile: "foo".into(),
                gpus: 1,
                ..base()
            }),
            "spec.gpu_profile: invalid MIG profile \"foo\" (expected mig-parted form like \"1g.10gb\")"
        );
        assert_eq!(
            message(Spec {
                gpu_profile: "1g.10gb".into(),
                ..base()
            }),
            "spec.gpu_profile requires spec.gpus >= 1 (the count of MIG instances)"
        );
        let l40 = Spec {
            gpu_profile: "1g.10gb".into(),
            gpus: 1,
            gpu_kind: "NVIDIA L40S".into(),
            ..base()
        };
        assert!(message(l40).contains("does not support MIG"));
    }

    #[test]
    fn label_messages_are_the_contract_texts() {
        let key = Spec {
            labels: [("a b".into(), "x".into())].into(),
            ..Spec::default()
        };
        assert_eq!(message(key), "spec.labels: invalid label key \"a b\"");
        let value = Spec {
            labels: [("disk".into(), "-x".into())].into(),
            ..Spec::default()
        };
        assert_eq!(
            message(value),
            "spec.labels[disk]: invalid label value \"-x\""
        );
    }

    #[test]
    fn sizes_and_arch() {
        for (field, spec) in [
            (
                "cpus",
                Spec {
                    cpus: -1,
                    ..Spec::default()
                },
            ),
            (
                "ram_mb",
                Spec {
                    ram_mb: -1,
                    ..Spec::default()
                },
            ),
            (
                "storage_gb",
                Spec {
                    storage_gb: -1,
                    ..Spec::default()
                },
            ),
        ] {
            assert_eq!(message(spec), format!("spec.{field} must not be negative"));
        }
        let mut spec = Spec {
            arch: " X86_64".into(),
            ..Spec::default()
        };
        spec.check_placement().unwrap();
        assert_eq!(spec.arch, "amd64");
        assert!(
            message(Spec {
                arch: "riscv".into(),
                ..Spec::default()
            })
            .contains("riscv")
        );
    }

    #[test]
    fn profiles_are_stored_lowercase() {
        let mut spec = Spec {
            gpu_profile: "1G.10GB".into(),
            gpus: 2,
            ..Spec::default()
        };
        spec.check_placement().unwrap();
        assert_eq!(spec.gpu_profile, "1g.10gb");
    }

    #[test]
    fn timeouts() {
        for (max, idle, ok) in [
            (0, 0, true),
            (1, 60, true),
            (-1, 0, false),
            (0, 59, false),
            (0, -60, false),
        ] {
            let spec = Spec {
                max_runtime_seconds: max,
                idle_timeout_seconds: idle,
                ..Spec::default()
            };
            assert_eq!(spec.check_timeouts().is_ok(), ok, "{max} {idle}");
        }
    }

    #[test]
    fn an_empty_spec_is_an_empty_object() {
        assert_eq!(serde_json::to_string(&Spec::default()).unwrap(), "{}");
    }
}
