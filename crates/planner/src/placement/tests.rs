//! Texts and order by example; the rules that must hold for any fleet by property.

use fuse_model::{
    AgentCheck, Allocated, Arch, Backend, Capacity, Evict, FailedBoots, HostState, Labels, now,
};
use proptest::prelude::*;

use super::*;

fn host(id: &str) -> Host {
    Host {
        id: HostId::new(id),
        url: format!("http://{id}:8090"),
        region: "us".to_owned(),
        backend: Backend::Firecracker,
        labels: Labels::new(),
        state: HostState::Active,
        evict: Evict::None,
        capacity: Capacity {
            cpus: 8,
            ram_mb: 8192,
            storage_gb: 100,
            vm_count: 4,
            ..Capacity::default()
        },
        allocated: Allocated::default(),
        last_seen: now(),
        created_at: now(),
        updated_at: now(),
        agent: None,
        failed_boots: None,
    }
}

fn check(error: Option<&str>) -> AgentCheck {
    AgentCheck {
        checked_at: now(),
        changed_at: now(),
        error: error.map(str::to_owned),
        version: String::new(),
        guests: None,
        disk_free_gb: None,
    }
}

fn quarantine() -> FailedBoots {
    FailedBoots {
        count: 3,
        last_error: "no kvm".to_owned(),
        quarantined_at: Some(now()),
        retry_at: None,
        retries: 0,
    }
}

fn gpu_host(id: &str, gpus: i32, kind: &str) -> Host {
    let mut host = host(id);
    host.backend = Backend::Qemu;
    host.capacity.gpus = gpus;
    kind.clone_into(&mut host.capacity.gpu_kind);
    host
}

fn spec(cpus: i32) -> EnvironmentSpec {
    EnvironmentSpec {
        cpus,
        ram_mb: 1024,
        storage_gb: 10,
        ..EnvironmentSpec::default()
    }
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn ids(placement: &Placement<'_>) -> Vec<String> {
    placement
        .candidates
        .iter()
        .map(|c| c.host.id.to_string())
        .collect()
}

fn refusal(spec: &EnvironmentSpec, hosts: &[Host]) -> String {
    place(spec, hosts, Policy::Spread, &[])
        .expect_err("is refused")
        .to_string()
}

#[test]
fn spread_takes_the_emptiest_and_binpack_the_fullest() {
    let mut fleet = [host("a"), host("b"), host("c")];
    fleet[0].allocated.cpus = 2;
    fleet[2].allocated.ram_mb = 1024;
    let spread = place(&spec(1), &fleet, Policy::Spread, &[]).expect("places");
    assert_eq!(ids(&spread), ["b", "c", "a"]);
    assert_eq!(spread.candidates[0].score, 8 * 10_000 + 8192);
    assert_eq!(
        (
            spread.candidates[0].headroom_cpus,
            spread.candidates[0].headroom_ram_mb
        ),
        (7, 7168)
    );
    let binpack = place(&spec(1), &fleet, Policy::Binpack, &[]).expect("places");
    assert_eq!(ids(&binpack), ["a", "c", "b"]);
}

#[test]
fn ties_go_to_the_smallest_id() {
    let fleet = [host("c"), host("a"), host("b")];
    for policy in [Policy::Spread, Policy::Binpack] {
        assert_eq!(
            ids(&place(&spec(1), &fleet, policy, &[]).expect("places")),
            ["a", "b", "c"]
        );
    }
}

#[test]
fn holders_of_the_seed_come_before_any_score_and_are_not_required() {
    let mut fleet = [host("a"), host("b"), host("c"), host("d")];
    fleet[1].allocated.cpus = 6;
    fleet[2].allocated.cpus = 4;
    let order = |fleet: &[Host], policy, holders: &[&str]| {
        let holders: Vec<HostId> = holders.iter().copied().map(HostId::new).collect();
        let placed = ids(&place(&spec(2), fleet, policy, &holders).expect("places"));
        let explained = crate::explain(&spec(2), fleet, policy, &holders);
        let explained: Vec<&str> = explained.iter().map(|e| e.host.id.as_str()).collect();
        assert_eq!(placed, explained);
        placed
    };
    assert_eq!(
        order(&fleet, Policy::Spread, &["b", "c"]),
        ["c", "b", "a", "d"]
    );
    assert_eq!(
        order(&fleet, Policy::Binpack, &["b", "c"]),
        ["b", "c", "a", "d"]
    );
    assert_eq!(order(&fleet, Policy::Spread, &["x"]), ["a", "d", "c", "b"]);
    // A holder that is full, or closed, is passed over.
    fleet[2].state = HostState::Cordoned;
    fleet[1].allocated.cpus = 7;
    let placed = place(
        &spec(2),
        &fleet,
        Policy::Spread,
        &[HostId::new("b"), HostId::new("c")],
    );
    assert_eq!(ids(&placed.expect("places")), ["a", "d"]);
}

#[test]
fn a_pin_considers_that_host_only() {
    let mut fleet = [host("a"), host("b")];
    fleet[1].allocated.cpus = 7;
    let mut pinned = spec(1);
    pinned.host_id = Some(HostId::new("b"));
    assert_eq!(
        ids(&place(&pinned, &fleet, Policy::Spread, &[]).expect("places")),
        ["b"]
    );
    pinned.cpus = 2;
    assert_eq!(
        refusal(&pinned, &fleet),
        "pinned host cannot take this environment: host \"b\" does not fit 2CPU/1024MB/10GB"
    );
    pinned.host_id = Some(HostId::new("x"));
    let unknown = place(&pinned, &fleet, Policy::Spread, &[]).expect_err("is refused");
    assert_eq!(
        unknown.to_string(),
        "host not found: placement.host \"x\" is not registered"
    );
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

#[test]
fn every_gate_says_its_text() {
    let reason = |change: &dyn Fn(&mut EnvironmentSpec, &mut Host)| {
        let (mut spec, mut host) = (spec(1), host("h"));
        change(&mut spec, &mut host);
        spec.host_id = Some(HostId::new("h"));
        let text = refusal(&spec, &[host]);
        let prefix = "pinned host cannot take this environment: host \"h\" ";
        text.strip_prefix(prefix)
            .expect("has the prefix")
            .to_owned()
    };
    assert_eq!(
        reason(&|_, h| h.state = HostState::Cordoned),
        "is cordoned, not active"
    );
    assert_eq!(
        reason(&|_, h| h.agent = Some(check(Some("connection refused")))),
        "does not answer: connection refused"
    );
    assert_eq!(
        reason(&|_, h| h.failed_boots = Some(quarantine())),
        "is quarantined: 3 boots in a row failed, the last one: no kvm"
    );
    assert_eq!(
        reason(&|s, _| s.region = "eu".to_owned()),
        "is in region \"us\", the spec requires \"eu\""
    );
    assert_eq!(
        reason(&|s, _| s.arch = Some(Arch::Arm64)),
        "is amd64, the spec requires arm64"
    );
    assert_eq!(
        reason(&|s, _| s.gpus = 1),
        "has backend \"firecracker\", gpu environments require \"qemu\""
    );
    assert_eq!(
        reason(&|s, h| {
            s.labels = labels(&[("b", "2"), ("a", "1"), ("c", "3")]);
            h.labels = labels(&[("a", "1"), ("b", "x")]);
        }),
        "does not have labels b=2,c=3"
    );
    assert_eq!(
        reason(&|_, h| h.allocated.vm_count = 4),
        "does not fit 1CPU/1024MB/10GB"
    );
}

#[test]
fn an_empty_fleet_and_a_full_one_are_told_apart() {
    assert_eq!(refusal(&spec(1), &[]), "no hosts registered");
    assert_eq!(
        refusal(&spec(9), &[host("a")]),
        "no host has sufficient capacity: need 9CPU/1024MB/10GB, no eligible host fits"
    );
}

#[test]
fn labels_that_match_nothing_are_named() {
    let mut wanted = spec(1);
    wanted.labels = labels(&[("tier", "x"), ("disk", "nvme")]);
    let mut fleet = [host("a"), host("b"), host("c")];
    fleet[2].state = HostState::Draining;
    fleet[2].labels = wanted.labels.clone();
    assert_eq!(
        refusal(&wanted, &fleet),
        "no host matches the requested placement labels: disk=nvme,tier=x matched none of 2 schedulable hosts"
    );
    // One that has the labels but no room is a matter of capacity.
    fleet[1].labels = wanted.labels.clone();
    fleet[1].allocated.cpus = 8;
    assert!(refusal(&wanted, &fleet).starts_with("no host has sufficient capacity: need 1CPU"));
}

#[test]
fn gpus_are_named_in_the_refusal() {
    let mut wanted = spec(1);
    wanted.gpus = 2;
    assert_eq!(
        refusal(&wanted, &[host("a")]),
        "no host has sufficient capacity: need 2 gpus, and none of 1 schedulable hosts serves gpus"
    );
    wanted.gpu_kind = "a100".to_owned();
    assert_eq!(
        refusal(&wanted, &[gpu_host("g", 1, "A100")]),
        "no host has sufficient capacity: need 1CPU/1024MB/10GB + 2 gpus of kind \"a100\", no eligible host fits"
    );
    wanted.gpus = 1;
    wanted.gpu_profile = "1g.10gb".to_owned();
    wanted.gpu_kind = String::new();
    assert!(refusal(&wanted, &[gpu_host("g", 1, "A100")]).contains("+ 1 1g.10gb mig instance, no"));
}

#[test]
fn a_gpu_kind_is_any_part_of_the_offered_one_in_any_case() {
    for (asked, offered, fits) in [
        ("", "a100", true),
        ("A100", "nvidia-a100-80gb", true),
        ("a100-80gb", "a100", false),
        ("h100", "a100", false),
        ("h100", "", true),
    ] {
        let mut wanted = spec(1);
        wanted.gpus = 1;
        wanted.gpu_kind = asked.to_owned();
        let fleet = [gpu_host("g", 1, offered)];
        assert_eq!(
            place(&wanted, &fleet, Policy::Spread, &[]).is_ok(),
            fits,
            "{asked} on {offered}"
        );
    }
}

#[test]
fn details_count_the_hosts_of_each_gate() {
    let mut fleet = [host("a"), host("b"), host("c"), host("d")];
    fleet[0].state = HostState::Cordoned;
    fleet[1].region = "eu".to_owned();
    fleet[2].allocated.cpus = 8;
    fleet[3].allocated.cpus = 8;
    let mut wanted = spec(1);
    wanted.region = "us".to_owned();
    let error = place(&wanted, &fleet, Policy::Spread, &[]).expect_err("is refused");
    let counts: Vec<_> = error
        .rejections()
        .expect("has counts")
        .iter()
        .map(|(gate, count)| (gate.as_str(), count))
        .collect();
    assert_eq!(counts, [("state", 1), ("region", 1), ("capacity", 2)]);
}

#[test]
fn zero_sizes_cost_nothing_but_a_slot() {
    let mut full = host("a");
    full.allocated.cpus = 8;
    full.allocated.ram_mb = 8192;
    full.allocated.storage_gb = 100;
    let nothing = EnvironmentSpec::default();
    assert!(place(&nothing, &[full.clone()], Policy::Spread, &[]).is_ok());
    full.allocated.vm_count = 4;
    assert!(place(&nothing, &[full], Policy::Spread, &[]).is_err());
}

#[test]
fn the_list_is_bounded_and_holds_the_best() {
    let fleet: Vec<Host> = (0..100)
        .map(|n| {
            let mut host = host(&format!("h{n:03}"));
            host.capacity.cpus = 8 + (n * 37) % 100;
            host
        })
        .collect();
    let placement = place(&spec(1), &fleet, Policy::Spread, &[]).expect("places");
    assert_eq!(
        (placement.candidates.len(), placement.eligible),
        (MAX_CANDIDATES, 100)
    );
    let mut best: Vec<i64> = fleet.iter().map(score).collect();
    best.sort_unstable_by(|a, b| b.cmp(a));
    let scores: Vec<i64> = placement.candidates.iter().map(|c| c.score).collect();
    assert_eq!(scores, best[..MAX_CANDIDATES]);
}

mod gpus;

fn any_host() -> impl Strategy<Value = Host> {
    let shape = (0..12i32, 0..12i32, 0..4i32, 0..4i32, 0..3i32, 0..3i32);
    let kind = (
        0..3usize,
        0..2usize,
        0..3usize,
        0..3usize,
        proptest::bool::ANY,
    );
    (0..1000u32, shape, kind).prop_map(|(id, shape, kind)| {
        let mut host = host(&format!("h{id}"));
        let (cpus, used, slots, used_slots, gpus, used_gpus) = shape;
        host.capacity.cpus = cpus;
        host.capacity.ram_mb = cpus * 1000;
        host.allocated.cpus = used;
        host.capacity.vm_count = slots;
        host.allocated.vm_count = used_slots;
        let (state, region, arch, label, qemu) = kind;
        host.state = [HostState::Active, HostState::Cordoned, HostState::Draining][state];
        host.region = ["us", "eu"][region].to_owned();
        host.capacity.arch = [None, Some(Arch::Amd64), Some(Arch::Arm64)][arch];
        host.labels = labels(&[("disk", ["hdd", "ssd", "nvme"][label])]);
        host.agent =
            [None, Some(check(None)), Some(check(Some("gone")))][(id % 7).min(2) as usize].clone();
        host.failed_boots = (id % 11 == 0).then(quarantine);
        if qemu {
            host.backend = Backend::Qemu;
            host.capacity.gpus = gpus;
            host.allocated.gpus = used_gpus;
            gpus::fill(&mut host, id);
        }
        host
    })
}

fn any_fleet() -> impl Strategy<Value = Vec<Host>> {
    proptest::collection::vec(any_host(), 0..40).prop_map(|mut fleet| {
        fleet.sort_by(|a, b| a.id.cmp(&b.id));
        fleet.dedup_by(|a, b| a.id == b.id);
        fleet
    })
}

fn any_spec() -> impl Strategy<Value = EnvironmentSpec> {
    (0..6i32, 0..3usize, 0..3usize, 0..3usize, 0..3i32, 0..3usize).prop_map(
        |(cpus, region, arch, label, gpus, profile)| EnvironmentSpec {
            cpus,
            ram_mb: cpus * 500,
            storage_gb: 1,
            region: ["", "us", "eu"][region].to_owned(),
            arch: [None, Some(Arch::Amd64), Some(Arch::Arm64)][arch],
            labels: if label == 0 {
                Labels::new()
            } else {
                labels(&[("disk", ["", "ssd", "nvme"][label])])
            },
            gpus: (gpus - 1).max(0),
            gpu_profile: if gpus > 1 {
                ["", "", "1g.10gb"][profile].to_owned()
            } else {
                String::new()
            },
            gpu_kind: ["", "a100", ""][label].to_owned(),
            ..EnvironmentSpec::default()
        },
    )
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Spread), Just(Policy::Binpack)]
}

proptest! {
    #[test]
    fn the_order_of_hosts_does_not_matter(
        spec in any_spec(),
        fleet in any_fleet(),
        policy in any_policy(),
        seed in any::<u64>(),
    ) {
        let mut shuffled = fleet.clone();
        let len = shuffled.len();
        for at in 0..len {
            let other = usize::try_from(seed.rotate_left(u32::try_from(at).expect("small")) % 97).expect("small");
            shuffled.swap(at, other % len);
        }
        let (left, right) = (place(&spec, &fleet, policy, &[]), place(&spec, &shuffled, policy, &[]));
        match (left, right) {
            (Ok(left), Ok(right)) => prop_assert_eq!(ids(&left), ids(&right)),
            (left, right) => prop_assert_eq!(left.err(), right.err()),
        }
    }

    #[test]
    fn a_chosen_host_fits_and_is_chosen_alone(
        spec in any_spec(),
        fleet in any_fleet(),
        policy in any_policy(),
    ) {
        let Ok(placement) = place(&spec, &fleet, policy, &[]) else { return Ok(()) };
        for candidate in &placement.candidates {
            let (host, free) = (candidate.host, candidate.host.free());
            prop_assert_eq!(host.state, HostState::Active);
            prop_assert!(free.cpus >= spec.cpus && free.ram_mb >= spec.ram_mb);
            prop_assert!(free.storage_gb >= spec.storage_gb && host.free_slots() >= 1);
            prop_assert!(free.gpus >= spec.resources().gpus);
            prop_assert!(spec.region.is_empty() || spec.region == host.region);
            prop_assert!(spec.arch.is_none_or(|arch| arch == host.arch()));
            let alone = std::slice::from_ref(host);
            prop_assert!(place(&spec, alone, policy, &[]).is_ok());
        }
    }

    #[test]
    fn a_host_rejected_alone_is_rejected_in_any_fleet(
        spec in any_spec(),
        fleet in any_fleet(),
        policy in any_policy(),
    ) {
        let refused_alone = |host: &Host| place(&spec, std::slice::from_ref(host), policy, &[]).is_err();
        let eligible = fleet.iter().filter(|host| !refused_alone(host)).count();
        match place(&spec, &fleet, policy, &[]) {
            Ok(placement) => {
                prop_assert_eq!(placement.eligible, eligible);
                prop_assert!(!placement.candidates.iter().any(|c| refused_alone(c.host)));
            }
            Err(_) => prop_assert_eq!(eligible, 0),
        }
    }

    #[test]
    fn one_more_host_never_makes_a_request_unplaceable(
        spec in any_spec(),
        fleet in any_fleet(),
        extra in any_host(),
        policy in any_policy(),
    ) {
        if place(&spec, &fleet, policy, &[]).is_ok() {
            let mut more = fleet;
            more.push(extra);
            prop_assert!(place(&spec, &more, policy, &[]).is_ok());
        }
    }
}
