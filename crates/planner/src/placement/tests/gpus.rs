//! GPU units: which are bound, and that none is sold twice.

use std::collections::BTreeSet;

use fuse_model::{GpuDevice, MigInstance};

use super::*;
use crate::{Verdict, explain};

/// Gives a host an inventory; its shape follows from `seed`.
pub(super) fn fill(host: &mut Host, seed: u32) {
    let devices = seed % 4;
    host.capacity.gpu_devices = (0..devices)
        .map(|n| device(n, ["A100", "H100"][(seed as usize + n as usize) % 2]))
        .collect();
    host.capacity.mig_profiles = [(
        "1g.10gb".to_owned(),
        i32::try_from(seed % 3).expect("small"),
    )]
    .into();
    host.capacity.mig_instances = (0..(seed / 3) % 3).map(instance).collect();
}

fn device(n: u32, model: &str) -> GpuDevice {
    GpuDevice {
        uuid: format!("GPU-{n}"),
        model: model.to_owned(),
        mig_capable: true,
        ..GpuDevice::default()
    }
}

fn instance(n: u32) -> MigInstance {
    MigInstance {
        uuid: format!("MIG-{n}"),
        profile: "1g.10gb".to_owned(),
        ..MigInstance::default()
    }
}

fn wanted(gpus: i32, kind: &str, profile: &str) -> EnvironmentSpec {
    EnvironmentSpec {
        gpus,
        gpu_kind: kind.to_owned(),
        gpu_profile: profile.to_owned(),
        ..spec(1)
    }
}

/// Charges a host as the store does, under its row lock.
fn charge(host: &mut Host, spec: &EnvironmentSpec) -> Option<Vec<String>> {
    let (free, need) = (host.free(), spec.resources());
    if free.cpus < need.cpus
        || free.ram_mb < need.ram_mb
        || free.gpus < need.gpus
        || host.free_slots() < 1
    {
        return None;
    }
    let units = host.bind_gpus(spec)?;
    let taken = &mut host.allocated;
    taken.cpus += need.cpus;
    taken.ram_mb += need.ram_mb;
    taken.storage_gb += need.storage_gb;
    taken.gpus += need.gpus;
    taken.vm_count += 1;
    let count = if spec.gpu_profile.is_empty() {
        0
    } else {
        spec.gpus
    };
    taken.bound.add(&spec.gpu_profile, count, units.clone());
    Some(units)
}

#[test]
fn devices_are_matched_by_model_and_bound_by_uuid() {
    let mut host = gpu_host("g", 3, "mixed");
    host.capacity.gpu_devices = vec![device(0, "NVIDIA A100"), device(1, "H100"), device(2, "")];
    let mut unknown = device(3, "NVIDIA A100");
    unknown.uuid = String::new();
    host.capacity.gpu_devices.push(unknown);
    let bind = |host: &Host, gpus, kind| host.bind_gpus(&wanted(gpus, kind, ""));
    assert_eq!(bind(&host, 1, "a100").expect("fits"), ["GPU-0"]);
    assert_eq!(
        bind(&host, 2, "a100"),
        None,
        "one without a UUID cannot be bound"
    );
    assert_eq!(
        bind(&host, 3, "").expect("fits"),
        ["GPU-0", "GPU-1", "GPU-2"]
    );
    // A device without a model goes by the kind of the host.
    assert_eq!(bind(&host, 1, "MIXED").expect("fits"), ["GPU-2"]);
    host.allocated.bound.gpu_uuids = BTreeSet::from(["GPU-0".to_owned()]);
    assert_eq!(bind(&host, 1, "a100"), None);
    assert_eq!(bind(&host, 1, "").expect("fits"), ["GPU-1"]);
}

#[test]
fn instances_are_bound_within_the_declared_count() {
    let mut host = gpu_host("g", 1, "a100");
    let bind = |host: &Host, gpus, kind| host.bind_gpus(&wanted(gpus, kind, "1g.10gb"));
    assert_eq!(
        bind(&host, 1, ""),
        None,
        "what the agent carved is no capacity"
    );
    host.capacity.mig_instances = vec![instance(0), instance(1), instance(2)];
    assert_eq!(bind(&host, 1, ""), None);
    host.capacity.mig_profiles = [("1g.10gb".to_owned(), 2)].into();
    assert_eq!(bind(&host, 2, "").expect("fits"), ["MIG-0", "MIG-1"]);
    assert_eq!(bind(&host, 3, ""), None);
    // Kinds: its own, else its parent's model, else the host's.
    host.capacity.mig_instances[0].kind = "h100".to_owned();
    host.capacity.gpu_devices = vec![device(7, "L40")];
    host.capacity.mig_instances[1].parent_gpu_uuid = "GPU-7".to_owned();
    assert_eq!(bind(&host, 1, "H100").expect("fits"), ["MIG-0"]);
    assert_eq!(bind(&host, 1, "l40").expect("fits"), ["MIG-1"]);
    assert_eq!(bind(&host, 1, "A100").expect("fits"), ["MIG-2"]);
    // Counted only: some partitionable device must be of the kind.
    host.capacity.mig_instances.clear();
    assert_eq!(bind(&host, 1, "l40"), Some(Vec::new()));
    assert_eq!(bind(&host, 1, "a100"), None);
    host.capacity.gpu_devices.clear();
    assert_eq!(bind(&host, 1, "A100"), Some(Vec::new()));
    assert_eq!(
        bind(&host, 1, "a10"),
        None,
        "a host without devices names its kind whole"
    );
    host.allocated.bound.mig_profiles = [("1g.10gb".to_owned(), 1)].into();
    assert_eq!(bind(&host, 2, ""), None);
}

#[test]
fn pools_do_not_mix() {
    let mut host = gpu_host("g", 1, "");
    host.capacity.mig_profiles = [("1g.10gb".to_owned(), 1)].into();
    charge(&mut host, &wanted(1, "", "")).expect("has a device");
    charge(&mut host, &wanted(1, "", "1g.10gb")).expect("and an instance");
    assert_eq!(charge(&mut host, &wanted(1, "", "")), None);
    assert_eq!(charge(&mut host, &wanted(1, "", "1g.10gb")), None);
}

#[test]
fn a_host_with_instances_only_serves_gpus() {
    let mut host = gpu_host("g", 0, "");
    host.capacity.mig_profiles = [("1g.10gb".to_owned(), 1)].into();
    let text = refusal(&wanted(2, "", "1g.10gb"), &[host]);
    assert!(
        text.ends_with("+ 2 1g.10gb mig instances, no eligible host fits"),
        "{text}"
    );
}

#[test]
fn every_host_is_explained() {
    let mut fleet = [host("a"), host("b"), host("c"), host("d")];
    fleet[1].capacity.cpus = 16;
    fleet[2].state = HostState::Cordoned;
    fleet[3].allocated.vm_count = 4;
    let verdicts = |spec: &EnvironmentSpec, policy| -> Vec<String> {
        explain(spec, &fleet, policy, &[])
            .into_iter()
            .map(|explained| {
                let verdict = match explained.verdict {
                    Verdict::Eligible { rank } => rank.to_string(),
                    Verdict::NotPinned => "pin".to_owned(),
                    Verdict::Rejected { gate, reason } => format!("{} {reason}", gate.as_str()),
                };
                format!("{} {verdict}", explained.host.id)
            })
            .collect()
    };
    let rejected = [
        "c state is cordoned, not active",
        "d capacity does not fit 1CPU/1024MB/10GB",
    ];
    let spread = verdicts(&spec(1), Policy::Spread);
    assert_eq!(spread, ["b 1", "a 2", rejected[0], rejected[1]]);
    let binpack = verdicts(&spec(1), Policy::Binpack);
    assert_eq!(binpack, ["a 1", "b 2", rejected[0], rejected[1]]);
    let mut pinned = spec(1);
    pinned.host_id = Some(HostId::new("a"));
    assert_eq!(
        verdicts(&pinned, Policy::Spread),
        ["a 1", "b pin", "c pin", "d pin"]
    );
}

proptest! {
    /// Requests are placed on snapshots that are out of date by any number of other
    /// placements, and charged as the store does it.
    #[test]
    fn nothing_is_oversold_in_any_interleaving(
        fleet in any_fleet(),
        requests in proptest::collection::vec((any_spec(), 0..4usize), 1..40),
        policy in any_policy(),
    ) {
        let mut now = fleet.clone();
        let mut history = vec![fleet];
        let mut sold: BTreeSet<(HostId, String)> = BTreeSet::new();
        for (spec, staleness) in requests {
            let at = history.len().saturating_sub(1 + staleness);
            let seen = &history[at];
            let Ok(placement) = place(&spec, seen, policy, &[]) else { continue };
            for candidate in &placement.candidates {
                let host = now.iter_mut().find(|host| host.id == candidate.host.id).expect("is there");
                let before = host.clone();
                if let Some(units) = charge(host, &spec) {
                    for unit in units {
                        prop_assert!(sold.insert((host.id.clone(), unit)));
                    }
                    prop_assert!(host.allocated.gpus <= host.capacity.gpus.max(before.allocated.gpus));
                    prop_assert!(host.allocated.cpus <= host.capacity.cpus.max(before.allocated.cpus));
                    prop_assert!(host.allocated.vm_count <= host.capacity.vm_count);
                    for (profile, count) in &host.allocated.bound.mig_profiles {
                        prop_assert!(*count <= host.capacity.mig_profiles.get(profile).copied().unwrap_or(0));
                    }
                    break;
                }
            }
            history.push(now.clone());
        }
    }

    #[test]
    fn an_explanation_agrees_with_placement(
        spec in any_spec(),
        fleet in any_fleet(),
        policy in any_policy(),
    ) {
        let explained = explain(&spec, &fleet, policy, &[]);
        prop_assert_eq!(explained.len(), fleet.len());
        let ranked: Vec<String> = explained
            .iter()
            .filter(|one| matches!(one.verdict, Verdict::Eligible { .. }))
            .map(|one| one.host.id.to_string())
            .collect();
        match place(&spec, &fleet, policy, &[]) {
            Ok(placement) => {
                prop_assert_eq!(placement.eligible, ranked.len());
                prop_assert_eq!(ids(&placement), &ranked[..placement.candidates.len()]);
            }
            Err(_) => prop_assert!(ranked.is_empty()),
        }
    }
}
