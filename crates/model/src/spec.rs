//! What an environment asks for.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{HostId, UnknownName};

/// Label pairs of a host, or those that a placement demands.
pub type Labels = BTreeMap<String, String>;

/// A processor architecture that guests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// 64-bit x86.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Arch {
    /// The name on the wire and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Accepts the usual spellings, trimmed and in any case (api 6.1).
impl FromStr for Arch {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().to_ascii_lowercase().as_str() {
            "amd64" | "x86_64" => Ok(Self::Amd64),
            "arm64" | "aarch64" => Ok(Self::Arm64),
            _ => Err(UnknownName::new("arch", text)),
        }
    }
}

/// The desired shape of an environment, already validated and normalised
/// (api 6.1). Counts are never negative; empty text means "any" or "default".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvironmentSpec {
    /// vCPUs; 0 = the agent's default, which counts 0 in accounting.
    pub cpus: i32,
    /// Memory in MiB; 0 as above.
    pub ram_mb: i32,
    /// Disk in GiB; 0 as above.
    pub storage_gb: i32,
    /// Region that the host must be in; empty = any.
    pub region: String,
    /// Architecture of the host; `None` = any.
    pub arch: Option<Arch>,
    /// Ceiling on the age of the environment in seconds; 0 = fleet default.
    pub max_runtime_seconds: i64,
    /// Idle time in seconds after which it is destroyed; 0 = fleet default.
    pub idle_timeout_seconds: i64,
    /// Host-side image name; empty = the host's default.
    pub image: String,
    /// Whole GPUs, or MIG instances when `gpu_profile` is set.
    pub gpus: i32,
    /// Kind of GPU; empty = any.
    pub gpu_kind: String,
    /// MIG profile, lowercase; empty = whole devices.
    pub gpu_profile: String,
    /// Hard pin to one host.
    pub host_id: Option<HostId>,
    /// Pairs that the host must all have.
    pub labels: Labels,
    /// Back guest memory with 2 MiB pages.
    pub huge_pages: bool,
}

impl EnvironmentSpec {
    /// The same, with the sizes that an agent gives to a VM for which none are asked.
    /// Its disk stays as large as its image.
    #[must_use]
    pub fn with_default_size(&self) -> Self {
        const CPUS: i32 = 1;
        const RAM_MB: i32 = 512;
        let or = |asked: i32, default| if asked == 0 { default } else { asked };
        Self {
            cpus: or(self.cpus, CPUS),
            ram_mb: or(self.ram_mb, RAM_MB),
            ..self.clone()
        }
    }

    /// What this spec takes from a host's free capacity. MIG instances are a pool of
    /// their own and no whole devices.
    pub fn resources(&self) -> Resources {
        Resources {
            cpus: self.cpus,
            ram_mb: self.ram_mb,
            storage_gb: self.storage_gb,
            gpus: if self.gpu_profile.is_empty() {
                self.gpus
            } else {
                0
            },
        }
    }
}

/// Amounts that a placement charges to a host; a VM slot comes on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// vCPUs.
    pub cpus: i32,
    /// Memory in MiB.
    pub ram_mb: i32,
    /// Disk in GiB.
    pub storage_gb: i32,
    /// Whole GPU devices.
    pub gpus: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arch_takes_the_usual_spellings() {
        assert_eq!(" X86_64 ".parse(), Ok(Arch::Amd64));
        assert_eq!("aarch64".parse(), Ok(Arch::Arm64));
        assert!("riscv".parse::<Arch>().is_err());
        assert_eq!(Arch::Amd64.to_string(), "amd64");
    }

    #[test]
    fn a_size_that_is_not_asked_for_is_the_default() {
        let sized = EnvironmentSpec::default().with_default_size();
        assert_eq!((sized.cpus, sized.ram_mb, sized.storage_gb), (1, 512, 0));
        let asked = EnvironmentSpec {
            cpus: 2,
            ..EnvironmentSpec::default()
        };
        let sized = asked.with_default_size();
        assert_eq!((sized.cpus, sized.ram_mb), (2, 512));
    }

    #[test]
    fn a_spec_survives_the_store() {
        let spec = EnvironmentSpec {
            cpus: 2,
            arch: Some(Arch::Arm64),
            host_id: Some(HostId::new("h1")),
            labels: Labels::from([("disk".to_owned(), "nvme".to_owned())]),
            ..EnvironmentSpec::default()
        };
        let text = serde_json::to_string(&spec).expect("serialises");
        assert_eq!(
            serde_json::from_str::<EnvironmentSpec>(&text).expect("parses"),
            spec
        );
        // A row written before a field existed still reads.
        assert_eq!(
            serde_json::from_str::<EnvironmentSpec>("{}").expect("parses"),
            EnvironmentSpec::default()
        );
    }
}
