//! What a host offers: the operator's declaration over the agent's probe (api 8.1).

use fuse_model::{Arch, Capacity};
use fuse_wire_api::Capacity as Declared;
use fuse_wire_host::Capacity as Probed;

/// The declared architecture is not the host's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("declared arch \"{declared}\" contradicts the host agent's probed arch \"{probed}\"")]
pub struct ArchContradiction {
    declared: String,
    probed: String,
}

/// Whether cpus, memory and storage were all declared, so that a failed probe does
/// not matter.
pub(super) fn is_complete(declared: &Declared) -> bool {
    declared.cpus > 0 && declared.ram_mb > 0 && declared.storage_gb > 0
}

/// The declaration alone.
pub(super) fn declared_only(declared: &Declared) -> Capacity {
    Capacity {
        cpus: declared.cpus,
        ram_mb: declared.ram_mb,
        storage_gb: declared.storage_gb,
        vm_count: declared.vm_count,
        arch: declared.arch.parse().ok(),
        gpus: declared.gpus,
        gpu_kind: declared.gpu_kind.clone(),
    }
}

/// The declaration, completed by the probe; a declaration above the probe stays and is
/// warned about.
pub(super) fn merge(
    declared: &Declared,
    probed: &Probed,
) -> Result<(Capacity, Vec<String>), ArchContradiction> {
    let mut warnings = Vec::new();
    let mut amount = |field: &str, declared: i32, probed: u64| {
        let probed = i32::try_from(probed).unwrap_or(i32::MAX);
        if declared <= 0 {
            return probed;
        }
        if probed > 0 && declared > probed {
            warnings.push(format!(
                "declared {field} ({declared}) exceeds probed host capacity ({probed})"
            ));
        }
        declared
    };
    let cpus = amount("cpus", declared.cpus, probed.cpus.into());
    let ram_mb = amount("ram_mb", declared.ram_mb, probed.ram_mb);
    let storage_gb = amount("storage_gb", declared.storage_gb, probed.storage_gb);
    let gpus = amount("gpus", declared.gpus, probed.gpus.into());
    let probed_kind = probed.gpu_kind.as_deref().unwrap_or_default();
    let gpu_kind = match declared.gpu_kind.as_str() {
        "" => probed_kind.to_owned(),
        kind => {
            if !probed_kind.is_empty() && kind != probed_kind {
                warnings.push(format!(
                    "declared gpu_kind (\"{kind}\") differs from probed host gpu_kind (\"{probed_kind}\")"
                ));
            }
            kind.to_owned()
        }
    };
    let arch = arch(declared, probed)?;
    let vm_count = declared.vm_count;
    Ok((
        Capacity {
            cpus,
            ram_mb,
            storage_gb,
            vm_count,
            arch,
            gpus,
            gpu_kind,
        },
        warnings,
    ))
}

fn arch(declared: &Declared, probed: &Probed) -> Result<Option<Arch>, ArchContradiction> {
    let probed_arch: Option<Arch> = probed.arch.parse().ok();
    let declared_arch: Option<Arch> = declared.arch.parse().ok();
    match (declared_arch, probed_arch) {
        (Some(wanted), Some(found)) if wanted != found => Err(ArchContradiction {
            declared: declared.arch.clone(),
            probed: probed.arch.clone(),
        }),
        (Some(wanted), _) => Ok(Some(wanted)),
        (None, found) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed() -> Probed {
        Probed {
            cpus: 16,
            ram_mb: 65_536,
            storage_gb: 500,
            arch: "amd64".into(),
            gpus: 0,
            gpu_kind: None,
            gpu_devices: Vec::new(),
        }
    }

    #[test]
    fn nothing_declared_takes_the_probe() {
        let declared = Declared {
            vm_count: 20,
            ..Declared::default()
        };
        let (capacity, warnings) = merge(&declared, &probed()).unwrap();
        assert_eq!(
            (capacity.cpus, capacity.ram_mb, capacity.storage_gb),
            (16, 65_536, 500)
        );
        assert_eq!((capacity.vm_count, capacity.arch), (20, Some(Arch::Amd64)));
        assert!(warnings.is_empty());
        assert!(!is_complete(&declared));
    }

    #[test]
    fn a_declaration_above_the_probe_stays_with_a_warning() {
        let declared = Declared {
            cpus: 32,
            ram_mb: 1024,
            ..Declared::default()
        };
        let (capacity, warnings) = merge(&declared, &probed()).unwrap();
        assert_eq!((capacity.cpus, capacity.ram_mb), (32, 1024));
        assert_eq!(
            warnings,
            ["declared cpus (32) exceeds probed host capacity (16)"]
        );
    }

    #[test]
    fn kinds_and_architectures() {
        let gpu = Probed {
            gpus: 2,
            gpu_kind: Some("a100".into()),
            ..probed()
        };
        let (capacity, warnings) = merge(
            &Declared {
                gpu_kind: "h100".into(),
                ..Declared::default()
            },
            &gpu,
        )
        .unwrap();
        assert_eq!((capacity.gpus, capacity.gpu_kind.as_str()), (2, "h100"));
        assert_eq!(
            warnings,
            ["declared gpu_kind (\"h100\") differs from probed host gpu_kind (\"a100\")"]
        );
        let wrong = Declared {
            arch: "arm64".into(),
            ..Declared::default()
        };
        assert_eq!(
            merge(&wrong, &probed()).unwrap_err().to_string(),
            "declared arch \"arm64\" contradicts the host agent's probed arch \"amd64\""
        );
    }

    #[test]
    fn a_huge_probe_saturates() {
        let huge = Probed {
            ram_mb: u64::MAX,
            ..probed()
        };
        assert_eq!(
            merge(&Declared::default(), &huge).unwrap().0.ram_mb,
            i32::MAX
        );
    }
}
