//! vCPUs and memory.

use serde::{Deserialize, Serialize};
use thiserror::Error;

const MAX_VCPUS: u8 = 32;
const DEFAULT_VCPUS: u8 = 1;
const DEFAULT_MEM_MIB: u64 = 128;

/// Body of `PUT /machine-config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MachineConfig {
    pub(crate) vcpu_count: u8,
    pub(crate) mem_size_mib: u64,
    /// Two threads to a core.
    #[serde(default)]
    pub(crate) smt: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_template: Option<CpuTemplate>,
    /// Prerequisite of diff snapshots, which the emulator refuses; full ones do not need it.
    #[serde(default)]
    pub(crate) track_dirty_pages: bool,
    #[serde(default)]
    pub(crate) huge_pages: HugePages,
}

/// Body of `PATCH /machine-config`: absent fields stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MachineConfigUpdate {
    pub(crate) vcpu_count: Option<u8>,
    pub(crate) mem_size_mib: Option<u64>,
    pub(crate) smt: Option<bool>,
    pub(crate) cpu_template: Option<CpuTemplate>,
    pub(crate) track_dirty_pages: Option<bool>,
    pub(crate) huge_pages: Option<HugePages>,
}

/// CPU feature sets of the real thing. Emulated CPUs have no counterpart, so
/// all but `None` are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum CpuTemplate {
    C3,
    T2,
    T2S,
    T2CL,
    T2A,
    V1N1,
    None,
}

/// What backs guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum HugePages {
    #[default]
    None,
    /// 2 MiB pages that the host has reserved.
    #[serde(rename = "2M")]
    Hugetlbfs2M,
}

/// A machine that cannot be had.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum MachineError {
    #[error(
        "The vCPU number is invalid! The vCPU number can only be 1 or an even number \
         when SMT is enabled, and at most {MAX_VCPUS}."
    )]
    Vcpus,
    #[error("The memory size (MiB) is invalid.")]
    Memory,
    #[error("CPU templates are not available in fc-emulator; leave cpu_template out")]
    CpuTemplate,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            vcpu_count: DEFAULT_VCPUS,
            mem_size_mib: DEFAULT_MEM_MIB,
            smt: false,
            cpu_template: None,
            track_dirty_pages: false,
            huge_pages: HugePages::None,
        }
    }
}

impl MachineConfig {
    /// This machine with `update` applied.
    ///
    /// # Errors
    /// The result is out of range; nothing of the update counts then.
    pub(crate) fn updated(self, update: MachineConfigUpdate) -> Result<Self, MachineError> {
        let new = Self {
            vcpu_count: update.vcpu_count.unwrap_or(self.vcpu_count),
            mem_size_mib: update.mem_size_mib.unwrap_or(self.mem_size_mib),
            smt: update.smt.unwrap_or(self.smt),
            cpu_template: None,
            track_dirty_pages: update.track_dirty_pages.unwrap_or(self.track_dirty_pages),
            huge_pages: update.huge_pages.unwrap_or(self.huge_pages),
        };
        let odd = !new.vcpu_count.is_multiple_of(2) && new.vcpu_count != 1;
        if new.vcpu_count == 0 || new.vcpu_count > MAX_VCPUS || (new.smt && odd) {
            return Err(MachineError::Vcpus);
        }
        let step = match new.huge_pages {
            HugePages::None => 1,
            HugePages::Hugetlbfs2M => 2,
        };
        if new.mem_size_mib == 0 || !new.mem_size_mib.is_multiple_of(step) {
            return Err(MachineError::Memory);
        }
        match update.cpu_template {
            None | Some(CpuTemplate::None) => Ok(new),
            Some(
                CpuTemplate::C3
                | CpuTemplate::T2
                | CpuTemplate::T2S
                | CpuTemplate::T2CL
                | CpuTemplate::T2A
                | CpuTemplate::V1N1,
            ) => Err(MachineError::CpuTemplate),
        }
    }
}

impl MachineConfigUpdate {
    /// Whether it names nothing at all.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl From<MachineConfig> for MachineConfigUpdate {
    /// A PUT replaces every field.
    fn from(config: MachineConfig) -> Self {
        Self {
            vcpu_count: Some(config.vcpu_count),
            mem_size_mib: Some(config.mem_size_mib),
            smt: Some(config.smt),
            cpu_template: config.cpu_template,
            track_dirty_pages: Some(config.track_dirty_pages),
            huge_pages: Some(config.huge_pages),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updated(body: &str) -> Result<MachineConfig, MachineError> {
        MachineConfig::default().updated(serde_json::from_str(body).unwrap())
    }

    #[test]
    fn an_update_keeps_what_it_does_not_name() {
        let machine = updated(r#"{"vcpu_count":3}"#).unwrap();
        assert_eq!((machine.vcpu_count, machine.mem_size_mib), (3, 128));
    }

    #[test]
    fn counts_and_sizes_have_bounds() {
        for (body, error) in [
            (r#"{"vcpu_count":0}"#, MachineError::Vcpus),
            (r#"{"vcpu_count":33}"#, MachineError::Vcpus),
            (r#"{"vcpu_count":3,"smt":true}"#, MachineError::Vcpus),
            (r#"{"mem_size_mib":0}"#, MachineError::Memory),
            (
                r#"{"mem_size_mib":129,"huge_pages":"2M"}"#,
                MachineError::Memory,
            ),
            (r#"{"cpu_template":"T2"}"#, MachineError::CpuTemplate),
        ] {
            assert_eq!(updated(body), Err(error), "{body}");
        }
        assert!(updated(r#"{"vcpu_count":1,"smt":true,"cpu_template":"None"}"#).is_ok());
        assert!(updated(r#"{"vcpu_count":32,"smt":true}"#).is_ok());
    }
}
