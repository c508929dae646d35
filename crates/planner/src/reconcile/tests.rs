//! Every combination of record and listing, and the memory between cycles.

use proptest::prelude::*;

use super::*;

const HOST: &str = "http://h:1";

fn fleet() -> FleetId {
    FleetId::new("ours")
}

fn record(id: &str, state: State) -> Tracked {
    Tracked {
        id: EnvironmentId::new(id),
        place: HOST.to_owned(),
        state,
        busy: false,
        boot_id: String::new(),
        guest_version: String::new(),
    }
}

fn ours(id: &str) -> Listed {
    Listed {
        id: id.to_owned(),
        owner: Some("ours".to_owned()),
        boot_id: None,
        guest_version: None,
        stopped: false,
    }
}

fn listing(vms: &[&str]) -> BTreeMap<String, Listing> {
    [(
        HOST.to_owned(),
        Listing::Vms(vms.iter().map(|id| ours(id)).collect()),
    )]
    .into()
}

fn unknown() -> BTreeMap<String, Listing> {
    [(HOST.to_owned(), Listing::Unknown)].into()
}

fn cycle(
    memory: &mut Memory,
    tracked: &[Tracked],
    listings: &BTreeMap<String, Listing>,
) -> Vec<Action> {
    memory.plan(&fleet(), tracked, listings, 5, None).actions
}

fn id(text: &str) -> EnvironmentId {
    EnvironmentId::new(text)
}

#[test]
fn every_state_listed_and_not_listed() {
    let none = Vec::new;
    let table = [
        (State::Provisioning, none(), none()),
        (State::Running, none(), vec![Action::MarkLost(id("a"))]),
        (State::Draining, none(), vec![Action::MarkLost(id("a"))]),
        (
            State::Destroying,
            vec![Action::RetryDestroy(id("a"))],
            vec![Action::Reap(id("a"))],
        ),
    ];
    for (state, if_listed, if_absent) in table {
        let tracked = [record("a", state)];
        assert_eq!(
            cycle(&mut Memory::default(), &tracked, &listing(&["a"])),
            if_listed,
            "{state}"
        );
        assert_eq!(
            cycle(&mut Memory::default(), &tracked, &listing(&[])),
            if_absent,
            "{state}"
        );
        assert_eq!(
            cycle(&mut Memory::default(), &tracked, &unknown()),
            none(),
            "{state}"
        );
        assert_eq!(
            cycle(&mut Memory::default(), &tracked, &BTreeMap::new()),
            none(),
            "{state}"
        );
    }
}

#[test]
fn without_an_inventory_only_destroys_are_repeated() {
    let listings = [(HOST.to_owned(), Listing::NoInventory)].into();
    let tracked = [record("a", State::Running), record("b", State::Destroying)];
    assert_eq!(
        cycle(&mut Memory::default(), &tracked, &listings),
        [Action::RetryDestroy(id("b"))]
    );
}

#[test]
fn what_somebody_works_on_is_left_alone() {
    for state in State::HOLDS_CAPACITY {
        let tracked = [Tracked {
            busy: true,
            ..record("a", state)
        }];
        for listings in [listing(&["a"]), listing(&[])] {
            assert_eq!(cycle(&mut Memory::default(), &tracked, &listings), []);
        }
    }
}

#[test]
fn an_orphan_is_destroyed_at_its_second_sighting_in_a_row() {
    let mut memory = Memory::default();
    let destroy = Action::DestroyOrphan {
        place: HOST.to_owned(),
        vm: "x".to_owned(),
    };
    assert_eq!(cycle(&mut memory, &[], &listing(&["x"])), []);
    assert_eq!(
        cycle(&mut memory, &[], &listing(&["x"])),
        std::slice::from_ref(&destroy)
    );
    // Gone and back again: it starts anew.
    assert_eq!(cycle(&mut memory, &[], &listing(&[])), []);
    assert_eq!(cycle(&mut memory, &[], &listing(&["x"])), []);
    // A host that does not answer in between changes nothing.
    assert_eq!(cycle(&mut memory, &[], &unknown()), []);
    assert_eq!(cycle(&mut memory, &[], &listing(&["x"])), [destroy]);
}

#[test]
fn a_vm_created_after_the_table_was_read_is_no_orphan() {
    let mut memory = Memory::default();
    assert_eq!(cycle(&mut memory, &[], &listing(&["new"])), []);
    let tracked = [record("new", State::Running)];
    assert_eq!(cycle(&mut memory, &tracked, &listing(&["new"])), []);
    assert_eq!(memory, Memory::default());
}

#[test]
fn a_second_vm_of_one_name_is_destroyed_where_the_record_is_not() {
    const OTHER: &str = "http://other:1";
    let booted = |boot: Option<&str>| Listed {
        boot_id: boot.map(str::to_owned),
        ..ours("a")
    };
    let listings = |here: Listing, other: Option<&str>| -> BTreeMap<String, Listing> {
        [
            (HOST.to_owned(), here),
            (OTHER.to_owned(), Listing::Vms(vec![booted(other)])),
        ]
        .into()
    };
    let own = |boot| Listing::Vms(vec![booted(boot)]);
    let twice = |record: &Tracked, listings: &BTreeMap<String, Listing>| {
        let mut memory = Memory::default();
        cycle(&mut memory, std::slice::from_ref(record), listings);
        cycle(&mut memory, std::slice::from_ref(record), listings)
    };
    let running = record("a", State::Running);
    let second = Action::DestroyOrphan {
        place: OTHER.to_owned(),
        vm: "a".to_owned(),
    };
    let two = listings(own(Some("x")), Some("y"));
    assert_eq!(twice(&running, &two), std::slice::from_ref(&second));
    // Whichever of the two has ended.
    let ended = || Listed {
        stopped: true,
        ..booted(None)
    };
    let of = |here, other| -> BTreeMap<String, Listing> {
        [(HOST, here), (OTHER, other)]
            .map(|(place, vm)| (place.to_owned(), Listing::Vms(vec![vm])))
            .into()
    };
    let first_ended = twice(&running, &of(booted(Some("x")), ended()));
    assert_eq!(first_ended, std::slice::from_ref(&second));
    let end = Action::EndStopped(id("a"));
    let own_ended = twice(&running, &of(ended(), booted(Some("y"))));
    assert_eq!(own_ended, [end.clone(), second]);
    assert_eq!(twice(&running, &of(ended(), ended())), [end]);
    // The same agent under another address, and what cannot be told from it.
    for (here, other) in [
        (own(Some("x")), Some("x")),
        (own(None), Some("y")),
        (own(Some("x")), None),
        (Listing::Unknown, Some("y")),
        (Listing::NoInventory, Some("y")),
    ] {
        assert_eq!(twice(&running, &listings(here, other)), []);
    }
    let busy = Tracked {
        busy: true,
        ..running
    };
    assert_eq!(twice(&busy, &two), []);
}

#[test]
fn vms_of_other_fleets_are_counted_and_never_touched() {
    let mut memory = Memory::default();
    let vms = vec![
        Listed {
            id: "a".to_owned(),
            owner: Some("theirs".to_owned()),
            boot_id: None,
            guest_version: None,
            stopped: false,
        },
        Listed {
            id: "b".to_owned(),
            owner: None,
            boot_id: None,
            guest_version: None,
            stopped: false,
        },
    ];
    let listings = [(HOST.to_owned(), Listing::Vms(vms))].into();
    for _ in 0..3 {
        let plan = memory.plan(&fleet(), &[], &listings, 5, None);
        assert_eq!(
            plan,
            Plan {
                foreign: ["a", "b"].map(|vm| (HOST.to_owned(), vm.to_owned())).into(),
                ..Plan::default()
            }
        );
    }
}

#[test]
fn an_orphan_that_cannot_be_destroyed_is_given_up_until_it_disappears() {
    let mut memory = Memory::default();
    assert_eq!(cycle(&mut memory, &[], &listing(&["x"])), []);
    for failures in 1..=5 {
        assert_eq!(cycle(&mut memory, &[], &listing(&["x"])).len(), 1);
        assert_eq!(memory.orphan_failed(HOST, "x"), failures);
    }
    let plan = memory.plan(&fleet(), &[], &listing(&["x"]), 5, None);
    assert_eq!(
        plan,
        Plan {
            orphans: 1,
            ..Plan::default()
        }
    );
    cycle(&mut memory, &[], &listing(&[]));
    assert_eq!(memory, Memory::default());
}

#[test]
fn another_boot_of_the_guest_is_set_up_again() {
    let plan = |state, known: &str, listed: Option<&str>| {
        let tracked = [Tracked {
            boot_id: known.to_owned(),
            ..record("a", state)
        }];
        let vm = Listed {
            boot_id: listed.map(str::to_owned),
            ..ours("a")
        };
        let listings = [(HOST.to_owned(), Listing::Vms(vec![vm]))].into();
        let plan = Memory::default().plan(&fleet(), &tracked, &listings, 5, None);
        (plan.actions, plan.unsettled)
    };
    let running = State::Running;
    assert_eq!(plan(running, "one", Some("one")), (vec![], false));
    assert_eq!(
        plan(running, "one", Some("two")),
        (vec![Action::SetUpAgain(id("a"))], true)
    );
    // It is booting: look again soon.
    assert_eq!(plan(running, "one", None), (vec![], true));
    // Nothing is known of the boot that was set up.
    assert_eq!(plan(running, "", Some("two")), (vec![], false));
    for state in [State::Provisioning, State::Draining] {
        assert_eq!(plan(state, "one", Some("two")), (vec![], false), "{state}");
    }
}

#[test]
fn another_release_of_the_guest_agent_is_noted() {
    let plan = |state, boot: &str, known: &str, said: Option<&str>| {
        let tracked = [Tracked {
            boot_id: "one".to_owned(),
            guest_version: known.to_owned(),
            ..record("a", state)
        }];
        let vm = Listed {
            boot_id: Some(boot.to_owned()),
            guest_version: said.map(str::to_owned),
            ..ours("a")
        };
        let listings = [(HOST.to_owned(), Listing::Vms(vec![vm]))].into();
        cycle(&mut Memory::default(), &tracked, &listings)
    };
    let note = || Action::NoteGuest {
        id: id("a"),
        version: "2".to_owned(),
    };
    let running = State::Running;
    assert_eq!(plan(running, "one", "", Some("2")), [note()]);
    assert_eq!(plan(running, "one", "1", Some("2")), [note()]);
    assert_eq!(plan(running, "one", "2", Some("2")), []);
    assert_eq!(plan(running, "one", "1", None), []);
    // Setting it up notes it as well.
    let set_up = Action::SetUpAgain(id("a"));
    assert_eq!(plan(running, "two", "1", Some("2")), [set_up]);
    assert_eq!(plan(State::Draining, "one", "1", Some("2")), []);
}

#[test]
fn a_vm_that_has_ended_counts_at_the_second_sighting_in_a_row() {
    let stopped: BTreeMap<String, Listing> = [(
        HOST.to_owned(),
        Listing::Vms(vec![Listed {
            stopped: true,
            ..ours("a")
        }]),
    )]
    .into();
    for state in [State::Running, State::Draining] {
        let (mut memory, tracked) = (Memory::default(), [record("a", state)]);
        let plan = memory.plan(&fleet(), &tracked, &stopped, 5, None);
        assert_eq!((plan.actions, plan.unsettled), (vec![], true));
        assert_eq!(cycle(&mut memory, &tracked, &listing(&["a"])), []);
        assert_eq!(cycle(&mut memory, &tracked, &stopped), []);
        assert_eq!(
            cycle(&mut memory, &tracked, &stopped),
            [Action::EndStopped(id("a"))]
        );
    }
    let mut memory = Memory::default();
    let tracked = [
        record("a", State::Provisioning),
        record("b", State::Destroying),
    ];
    assert_eq!(cycle(&mut memory, &tracked[..1], &stopped), []);
    assert_eq!(cycle(&mut memory, &tracked[..1], &stopped), []);
}

#[test]
fn destroys_are_retried_with_backoff() {
    let mut memory = Memory::default();
    let tracked = [record("a", State::Destroying)];
    let attempts: Vec<usize> = (0..90)
        .filter(|_| !cycle(&mut memory, &tracked, &listing(&["a"])).is_empty())
        .collect();
    assert_eq!(attempts, [0, 1, 3, 7, 15, 31, 51, 71]);
}

proptest! {
    /// Whatever the listings say, a record that is being worked on, a provisioning
    /// one, and a VM that has a record are never destroyed or marked.
    #[test]
    fn nothing_alive_is_ever_acted_on(
        states in prop::collection::vec((0usize..4, any::<bool>(), any::<bool>()), 0..12),
        cycles in 1usize..4,
    ) {
        let mut memory = Memory::default();
        let tracked: Vec<Tracked> = states
            .iter()
            .enumerate()
            .map(|(i, (state, busy, _))| Tracked {
                busy: *busy,
                ..record(&format!("vm{i}"), State::HOLDS_CAPACITY[*state])
            })
            .collect();
        let names: Vec<String> = states
            .iter()
            .enumerate()
            .filter(|(_, (_, _, listed))| *listed)
            .map(|(i, _)| format!("vm{i}"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for _ in 0..cycles {
            for action in cycle(&mut memory, &tracked, &listing(&names)) {
                let (id, destroying) = match &action {
                    Action::MarkLost(id) => (id, false),
                    Action::Reap(id) | Action::RetryDestroy(id) => (id, true),
                    Action::DestroyOrphan { .. } | Action::SetUpAgain(_) | Action::NoteGuest { .. }
                    | Action::EndStopped(_) => panic!("{action:?}"),
                };
                let found = tracked.iter().find(|one| one.id == *id).unwrap();
                prop_assert!(!found.busy);
                prop_assert_eq!(found.state == State::Destroying, destroying);
                if !destroying {
                    prop_assert!(!names.contains(&id.as_str()));
                    prop_assert!(found.state != State::Provisioning);
                }
            }
        }
    }
}

/// On a store that does not outlive its process nobody knows whose a VM is that was
/// there before; one that came later is somebody else's.
#[test]
fn what_was_there_before_a_volatile_store() {
    let foreign = |id: &str| Listed {
        owner: Some("theirs".to_owned()),
        ..ours(id)
    };
    let nobodys = Listed {
        owner: None,
        ..ours("untagged")
    };
    let heard = |vms: Vec<Listed>| BTreeMap::from([(HOST.to_owned(), Listing::Vms(vms))]);
    let first = heard(vec![foreign("old"), nobodys.clone(), ours("vm")]);
    let later = heard(vec![foreign("old"), nobodys, ours("vm"), foreign("new")]);
    let known = [record("vm", State::Running)];

    let run = |rule| {
        let (mut memory, mut strangers) = (Memory::default(), Strangers::new(rule));
        let mut plan = |listings: &BTreeMap<String, Listing>| {
            memory.plan(&fleet(), &known, listings, 5, Some(&mut strangers))
        };
        // A host that does not answer yet says nothing about what was there.
        assert_eq!(plan(&unknown()).quarantined, 0);
        [
            plan(&first),
            plan(&later),
            plan(&heard(vec![ours("vm")])),
            plan(&later),
        ]
    };
    let counts = |plans: &[Plan; 4]| {
        let counts = |plan: &Plan| (plan.quarantined, plan.foreign.len(), plan.orphans);
        plans.each_ref().map(counts)
    };
    let kept = run(AtBoot::Quarantine);
    // What has left is no stranger when it is seen again.
    assert_eq!(counts(&kept), [(2, 0, 0), (2, 1, 0), (0, 0, 0), (0, 3, 0)]);
    assert!(kept.iter().all(|plan| plan.actions.is_empty()), "{kept:?}");

    let ended = run(AtBoot::Destroy);
    assert_eq!(counts(&ended), [(0, 0, 2), (0, 1, 2), (0, 0, 0), (0, 3, 0)]);
    let gone = ["old", "untagged"].map(|vm| Action::DestroyOrphan {
        place: HOST.to_owned(),
        vm: vm.to_owned(),
    });
    assert_eq!(ended[1].actions, gone);
    assert!(ended[0].actions.is_empty() && ended[3].actions.is_empty());
}
