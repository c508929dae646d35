use super::super::mig::Instance;
use super::super::vfio::Group;
use super::*;
use proptest::prelude::*;

const U: [&str; 3] = [
    "c73b0b02-1e4b-4c5a-9d2e-000000000001",
    "c73b0b02-1e4b-4c5a-9d2e-000000000002",
    "c73b0b02-1e4b-4c5a-9d2e-000000000003",
];

fn group(bus: u8, count: u32, kind: &str) -> WholeGroup {
    let functions = count + 1;
    let slot = |function: u32| format!("0000:{bus:02x}:00.{function}").parse().unwrap();
    let slots = (0..functions).map(slot);
    WholeGroup {
        listed: Group {
            count,
            kind: kind.into(),
            slots: slots.collect(),
            facts: None,
        },
        uuids: vec![format!("GPU-{bus:x}")],
        models: vec![format!("NVIDIA {} PCIe", kind.to_uppercase())],
        fault: None,
    }
}

fn part(uuid: &str, profile: &str, kind: &str) -> Part {
    Part {
        listed: Instance {
            profile: profile.into(),
            kind: kind.into(),
            uuid: uuid.into(),
            parent: String::new(),
        },
        model: String::new(),
        fault: None,
    }
}

fn inventory() -> Inventory {
    Inventory {
        groups: vec![group(1, 1, "a100"), group(2, 1, "t4"), group(3, 2, "a100")],
        parts: vec![
            part(U[0], "1g.10gb", "a100"),
            part(U[1], "2g.20gb", "a100"),
            part(U[2], "1g.10gb", "h100"),
        ],
        ..Inventory::default()
    }
}

fn whole(gpus: u32, kind: &str) -> Want {
    Want {
        gpus,
        kind: kind.into(),
        ..Want::default()
    }
}

fn gpus(uuids: &[&str]) -> Want {
    Want {
        gpus: u32::try_from(uuids.len()).unwrap(),
        gpu_uuids: uuids.iter().map(|uuid| (*uuid).to_owned()).collect(),
        ..Want::default()
    }
}

fn instances(profile: &str, uuids: &[&str]) -> Want {
    Want {
        gpus: u32::try_from(uuids.len()).unwrap(),
        profile: profile.into(),
        mig_uuids: uuids.iter().map(|uuid| (*uuid).to_owned()).collect(),
        ..Want::default()
    }
}

fn used_by(vm: &str, want: &Want) -> Used {
    let mut used = Used::default();
    used.add(vm, &pick(&inventory(), &used, want).unwrap());
    used
}

fn refusal(used: &Used, want: &Want) -> String {
    pick(&inventory(), used, want).unwrap_err().to_string()
}

fn slots(claim: &Claim) -> Vec<String> {
    claim.slots.iter().map(ToString::to_string).collect()
}

#[test]
fn a_bound_gpu_comes_with_its_companions_and_no_other_does() {
    let claim = pick(&inventory(), &Used::default(), &gpus(&["gpu-2"])).unwrap();
    assert_eq!(slots(&claim), ["0000:02:00.0", "0000:02:00.1"]);
    assert_eq!((claim.gpus, claim.mdevs.len()), (1, 0));
}

#[test]
fn conflicts_name_the_device() {
    let used = used_by("vm-1", &gpus(&["GPU-1"]));
    for (want, text) in [
        (gpus(&["GPU-1"]), "GPU GPU-1 is in use by vm vm-1"),
        (
            gpus(&["GPU-8"]),
            "GPU GPU-8 is not in this host's inventory vfio-inventory.txt",
        ),
        (gpus(&["GPU-2", "gpu-2"]), "GPU gpu-2 is asked for twice"),
        (
            gpus(&["GPU-3"]),
            "GPU GPU-3 shares its IOMMU group with others: the 2 GPUs",
        ),
        (instances("2g.20gb", &[U[0]]), "is 1g.10gb, not 2g.20gb"),
        (
            instances("1g.10gb", &["GPU-1"]),
            "MIG instance gpu-1 is not in this host's inventory",
        ),
    ] {
        let said = refusal(&used, &want);
        assert!(said.contains(text), "{said}");
    }
    let used = used_by("vm-2", &instances("1g.10gb", &[U[0]]));
    let said = refusal(&used, &instances("1g.10gb", &[U[0]]));
    assert_eq!(said, format!("MIG instance {} is in use by vm vm-2", U[0]));
}

#[test]
fn a_group_of_several_is_had_by_asking_for_all_of_it() {
    let want = Want {
        gpus: 2,
        ..gpus(&["GPU-3"])
    };
    assert_eq!(
        pick(&inventory(), &Used::default(), &want)
            .unwrap()
            .slots
            .len(),
        3
    );
}

#[test]
fn without_names_the_exact_sum_is_found() {
    let claim = pick(&inventory(), &Used::default(), &whole(2, "A100")).unwrap();
    assert_eq!(
        slots(&claim)[0],
        "0000:03:00.0",
        "one group rather than two"
    );
    let all = pick(&inventory(), &Used::default(), &whole(4, "")).unwrap();
    assert_eq!((all.gpus, all.slots.len()), (4, 7));
    let used = used_by("vm-1", &whole(1, "a100"));
    assert_eq!(
        refusal(&used, &whole(1, "a100")),
        "no free IOMMU groups have exactly 1 GPUs together; groups are given out whole and the \
         free ones have [2]"
    );
    assert_eq!(
        refusal(&used, &whole(3, "a100")),
        "not enough free GPUs of kind \"a100\": 3 asked for, 2 free"
    );
    // A marketing name's part will do, as it does where hosts are chosen.
    assert!(pick(&inventory(), &used, &whole(2, "nvidia a100")).is_ok());
    assert!(refusal(&used, &whole(1, "v100")).contains("0 free"));
}

#[test]
fn instances_are_a_pool_of_their_own() {
    let want = Want {
        gpus: 2,
        profile: "1g.10gb".into(),
        ..Want::default()
    };
    let claim = pick(&inventory(), &used_by("vm-1", &whole(4, "")), &want).unwrap();
    assert_eq!(
        (claim.gpus, &claim.mdevs[..]),
        (2, &[U[0].to_owned(), U[2].to_owned()][..])
    );
    assert!(claim.slots.is_empty());
    let of_kind = Want {
        kind: "H100".into(),
        gpus: 1,
        ..want.clone()
    };
    let claim = pick(&inventory(), &Used::default(), &of_kind).unwrap();
    assert_eq!(claim.mdevs, [U[2]]);
    let used = used_by("vm-1", &of_kind);
    assert_eq!(
        refusal(&used, &want),
        "not enough free 1g.10gb instances: 2 asked for, 1 free"
    );
}

#[test]
fn requests_that_contradict_themselves() {
    let both = Want {
        profile: "1g.10gb".into(),
        ..gpus(&["GPU-1"])
    };
    assert!(refusal(&Used::default(), &both).contains("cannot be asked for with a gpu_profile"));
    let more = Want {
        gpus: 3,
        ..instances("1g.10gb", &[U[0]])
    };
    assert!(refusal(&Used::default(), &more).contains("3 instances are asked for and 1 are named"));
}

#[test]
fn a_device_that_is_not_ready_is_the_hosts_fault() {
    let mut inventory = inventory();
    inventory.groups[1].fault = Some("0000:02:00.0 is bound to nvidia".into());
    inventory.parts[1].fault = Some("gone".into());
    let used = Used::default();
    for want in [
        gpus(&["GPU-2"]),
        whole(1, "t4"),
        instances("2g.20gb", &[U[1]]),
    ] {
        let error = pick(&inventory, &used, &want).unwrap_err();
        assert!(error.is_hosts(), "{error}");
    }
    let error = pick(&inventory, &used, &whole(1, "t4"))
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("0 free; not usable: 0000:02:00.0 is bound to nvidia"),
        "{error}"
    );
    // Others go on being given out.
    assert!(pick(&inventory, &used, &whole(1, "")).is_ok());
}

proptest! {
    /// Whatever is asked for in whatever order: no device has two owners, groups stay whole, and what
    /// is given back can be had again.
    #[test]
    fn no_device_is_given_out_twice(
        sizes in proptest::collection::vec(1..4u32, 1..6),
        wants in proptest::collection::vec((1..5u32, any::<bool>()), 1..8),
    ) {
        let groups = sizes.iter().zip(1..).map(|(count, bus)| group(bus, *count, "a100"));
        let inventory = Inventory { groups: groups.collect(), ..inventory() };
        let mut used = Used::default();
        let mut owned: Vec<PciAddress> = Vec::new();
        let mut mdevs: Vec<String> = Vec::new();
        for (n, (gpus, parts)) in wants.into_iter().enumerate() {
            let profile = if parts { "1g.10gb".to_owned() } else { String::new() };
            let want = Want { gpus, profile, ..Want::default() };
            let free: Vec<u32> = inventory.groups.iter()
                .filter(|group| group.listed.slots.iter().all(|slot| !owned.contains(slot)))
                .map(|group| group.listed.count).collect();
            match pick(&inventory, &used, &want) {
                Ok(claim) => {
                    prop_assert_eq!(claim.gpus, gpus);
                    prop_assert!(claim.slots.iter().all(|slot| !owned.contains(slot)));
                    prop_assert!(claim.mdevs.iter().all(|uuid| !mdevs.contains(uuid)));
                    for group in &inventory.groups {
                        let inside = group.listed.slots.iter().filter(|s| claim.slots.contains(s));
                        prop_assert!([0, group.listed.slots.len()].contains(&inside.count()));
                    }
                    owned.extend(&claim.slots);
                    mdevs.extend(claim.mdevs.clone());
                    used.add(&format!("vm-{n}"), &claim);
                }
                // An exact fit is never overlooked.
                Err(_) if !parts => prop_assert!(!sums(&free).contains(&gpus), "{free:?} {gpus}"),
                Err(_) => prop_assert!(2 - mdevs.len() < gpus as usize),
            }
        }
    }
}

/// Every sum of some of the numbers.
fn sums(of: &[u32]) -> std::collections::BTreeSet<u32> {
    let mut sums = std::collections::BTreeSet::from([0]);
    for number in of {
        let more: Vec<u32> = sums.iter().map(|sum| sum + number).collect();
        sums.extend(more);
    }
    sums
}
