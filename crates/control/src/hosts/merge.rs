//! What a host offers: the operator's declaration over the agent's probe (api 8.1).

use fuse_model::{Arch, Capacity, GpuDevice, MigInstance};
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

/// The declaration as it is kept: zero and empty mean "take the probe".
pub(super) fn declared_only(declared: &Declared) -> Capacity {
    Capacity {
        cpus: declared.cpus,
        ram_mb: declared.ram_mb,
        storage_gb: declared.storage_gb,
        vm_count: declared.vm_count,
        arch: declared.arch.parse().ok(),
        gpus: declared.gpus,
        gpu_kind: declared.gpu_kind.clone(),
        mig_profiles: declared.mig_profiles.clone(),
        ..Capacity::default()
    }
}

/// The GPU inventory of an agent, and what is odd about it next to the declaration.
fn inventory(capacity: &mut Capacity, probed: &Probed, warnings: &mut Vec<String>) {
    capacity.gpu_devices = probed.gpu_devices.iter().map(device).collect();
    capacity.mig_instances = probed.mig_instances.iter().map(instance).collect();
    for (profile, &count) in &capacity.mig_profiles {
        let carved = capacity
            .mig_instances
            .iter()
            .filter(|instance| instance.profile == *profile)
            .count();
        if i32::try_from(carved).is_ok_and(|carved| count > carved) && carved > 0 {
            warnings.push(format!(
                "declared mig_profiles[{profile}] ({count}) exceeds probed MIG instances ({carved})"
            ));
        }
    }
    if !capacity.mig_profiles.is_empty() && capacity.mig_instances.is_empty() {
        warnings.push(
            "mig_profiles are declared but the host agent reports no MIG instances; \
             they are counted, not bound to instances"
                .to_owned(),
        );
    }
}

fn device(found: &fuse_wire_host::GpuDevice) -> GpuDevice {
    GpuDevice {
        uuid: found.uuid.clone(),
        model: found.model.clone(),
        pci_bus_id: found.pci_bus_id.clone(),
        memory_mb: i64::try_from(found.memory_mb).unwrap_or(i64::MAX),
        driver_version: found.driver_version.clone(),
        cuda_version: found.cuda_version.clone(),
        compute_cap: found.compute_cap.clone(),
        mig_capable: found.mig_capable,
        mig_mode: found.mig_mode.clone(),
        iommu_group: found.iommu_group.clone(),
    }
}

fn instance(found: &fuse_wire_host::MigInstance) -> MigInstance {
    MigInstance {
        uuid: found.uuid.clone(),
        profile: found.profile.to_lowercase(),
        kind: found.kind.clone(),
        parent_gpu_uuid: found.parent_gpu_uuid.clone(),
    }
}

/// The declaration, completed by the probe; a declaration above the probe stays and is
/// warned about.
pub(super) fn merge(
    declared: &Capacity,
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
    let mut capacity = Capacity {
        cpus,
        ram_mb,
        storage_gb,
        vm_count: declared.vm_count,
        arch: arch(declared, probed)?,
        gpus,
        gpu_kind,
        mig_profiles: declared.mig_profiles.clone(),
        ..Capacity::default()
    };
    inventory(&mut capacity, probed, &mut warnings);
    Ok((capacity, warnings))
}

fn arch(declared: &Capacity, probed: &Probed) -> Result<Option<Arch>, ArchContradiction> {
    let probed_arch: Option<Arch> = probed.arch.parse().ok();
    match (declared.arch, probed_arch) {
        (Some(wanted), Some(found)) if wanted != found => Err(ArchContradiction {
            declared: wanted.to_string(),
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
            ..Probed::default()
        }
    }

    #[test]
    fn nothing_declared_takes_the_probe() {
        let declared = Capacity {
            vm_count: 20,
            ..Capacity::default()
        };
        let (capacity, warnings) = merge(&declared, &probed()).unwrap();
        assert_eq!(
            (capacity.cpus, capacity.ram_mb, capacity.storage_gb),
            (16, 65_536, 500)
        );
        assert_eq!((capacity.vm_count, capacity.arch), (20, Some(Arch::Amd64)));
        assert!(warnings.is_empty());
        assert!(!is_complete(&Declared::default()));
    }

    #[test]
    fn a_declaration_above_the_probe_stays_with_a_warning() {
        let declared = Capacity {
            cpus: 32,
            ram_mb: 1024,
            ..Capacity::default()
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
            &Capacity {
                gpu_kind: "h100".into(),
                ..Capacity::default()
            },
            &gpu,
        )
        .unwrap();
        assert_eq!((capacity.gpus, capacity.gpu_kind.as_str()), (2, "h100"));
        assert_eq!(
            warnings,
            ["declared gpu_kind (\"h100\") differs from probed host gpu_kind (\"a100\")"]
        );
        let wrong = Capacity {
            arch: Some(Arch::Arm64),
            ..Capacity::default()
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
            merge(&Capacity::default(), &huge).unwrap().0.ram_mb,
            i32::MAX
        );
    }
}
