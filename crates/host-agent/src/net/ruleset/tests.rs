//! Small changes add up to the whole; the kernel's listing is told apart from what it should be.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::net::firewall::{Firewall, Verdict, dropping_chains as chains_of_host, remove};
use crate::net::{Links, NetPlan};
use crate::testing::{in_netns, run};
use crate::tools;

fn binding(index: Index, forwards: &[(u16, u16, bool)]) -> Binding {
    let slot = NetPlan::new("fcv", "10.200.0.0/16", 19550, 249)
        .unwrap()
        .slot(index);
    let forward = |(host_port, guest_port, udp): &(u16, u16, bool)| Forward {
        host_port: *host_port,
        guest_port: *guest_port,
        udp: *udp,
    };
    Binding {
        slot,
        forwards: forwards.iter().map(forward).collect(),
    }
}

/// The elements that a script's lines leave behind, as "set element".
fn applied(script: &str, elements: &mut BTreeSet<String>) {
    for line in script.lines() {
        let (head, element) = line.trim_end_matches(" }").split_once(" { ").unwrap();
        let words: Vec<_> = head.split(' ').collect();
        let (verb, set) = (words[0], words[4]);
        match verb {
            "add" => assert!(elements.insert(format!("{set} {element}")), "{line}"),
            // A map's element is deleted by its key.
            "delete" => {
                let found = elements.iter().find(|e| {
                    **e == format!("{set} {element}")
                        || e.starts_with(&format!("{set} {element} :"))
                });
                let found = found
                    .unwrap_or_else(|| panic!("{line} in {elements:?}"))
                    .clone();
                elements.remove(&found);
            }
            verb => panic!("{verb}"),
        }
    }
}

fn some_binding() -> impl Strategy<Value = Option<Binding>> {
    // Host ports are unique by construction, as the tables make them.
    let forwards = proptest::collection::btree_map(20000u16..20006, (1u16..4, any::<bool>()), 0..5);
    let one = (1u16..3, forwards).prop_map(|(index, forwards)| {
        let list: Vec<_> = forwards
            .into_iter()
            .map(|(h, (g, udp))| (h, g, udp))
            .collect();
        binding(index, &list)
    });
    proptest::option::of(one)
}

proptest! {
    #[test]
    fn changes_add_up(steps in proptest::collection::vec(some_binding(), 1..8)) {
        let mut elements = BTreeSet::new();
        let mut now: Option<Binding> = None;
        for next in steps {
            applied(&change("t", now.as_ref(), next.as_ref()), &mut elements);
            let mut whole = BTreeSet::new();
            applied(&change("t", None, next.as_ref()), &mut whole);
            prop_assert_eq!(&elements, &whole);
            now = next;
        }
    }
}

#[test]
fn the_kernel_is_brought_back_to_what_it_should_be() {
    in_netns(|| async {
        let nft = tools::find("nft").unwrap();
        let first = binding(1, &[(20000, 80, false), (20000, 53, true)]);
        let firewall = Firewall::start(nft.clone(), "fuse", "10.200.0.0/16", [first])
            .await
            .unwrap();
        assert_eq!(firewall.verify().await.unwrap(), Verdict::Intact);
        firewall
            .set(binding(2, &[(20001, 80, false)]))
            .await
            .unwrap();
        firewall
            .set(binding(2, &[(20001, 81, false), (20002, 80, false)]))
            .await
            .unwrap();
        assert_eq!(firewall.verify().await.unwrap(), Verdict::Intact);
        for damage in [
            &["flush", "ruleset"][..],
            &[
                "delete",
                "element",
                "inet",
                "fuse",
                "tcp_ports",
                "{ 20002 }",
            ],
            &["delete", "element", "inet", "fuse", "taps", "{ \"fcv1\" }"],
            &["flush", "chain", "inet", "fuse", "input"],
        ] {
            run("nft", damage);
            assert_eq!(
                firewall.verify().await.unwrap(),
                Verdict::Repaired,
                "{damage:?}"
            );
            assert_eq!(
                firewall.verify().await.unwrap(),
                Verdict::Intact,
                "{damage:?}"
            );
        }
        // A change finds the damage by itself.
        run("nft", &["flush", "ruleset"]);
        firewall.clear(2).await.unwrap();
        firewall.clear(2).await.unwrap();
        assert_eq!(firewall.verify().await.unwrap(), Verdict::Intact);
        assert!(!run("nft", &["list", "table", "inet", "fuse"]).contains("fcv2"));
        remove(&nft, "fuse").await.unwrap();
        remove(&nft, "fuse").await.unwrap();
        assert_eq!(run("nft", &["list", "tables"]), "");
    });
}

#[test]
fn chains_that_drop_everything_are_named() {
    in_netns(|| async {
        let nft = tools::find("nft").unwrap();
        run("nft", &["add", "table", "ip", "filter"]);
        let chain = "{ type filter hook forward priority 0; policy drop; }";
        run("nft", &["add", "chain", "ip", "filter", "FORWARD", chain]);
        let found = chains_of_host(&nft, "fuse").await.unwrap();
        assert_eq!(found, ["ip filter FORWARD"]);
        assert!(chains_of_host(&nft, "filter").await.unwrap().is_empty());
    });
}

#[test]
fn devices_are_made_anew_and_removed_once() {
    in_netns(|| async {
        let links = Links::open().unwrap();
        links.enable_forwarding().await.unwrap();
        let slot = binding(7, &[]).slot;
        links.create(&slot, None).await.unwrap();
        links.create(&slot, None).await.unwrap();
        assert!(run("ip", &["-4", "addr", "show", "fcv7"]).contains("10.200.7.1/30"));
        let setting =
            |name: &str| std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap();
        assert_eq!(setting("ipv4/ip_forward"), "1\n");
        assert_eq!(setting("ipv4/conf/fcv7/route_localnet"), "1\n");
        assert_eq!(links.with_prefix("fcv").await.unwrap(), ["fcv7"]);
        assert!(links.with_prefix("fc").await.unwrap().is_empty());
        links.remove("fcv7").await.unwrap();
        links.remove("fcv7").await.unwrap();
        assert!(!run("ip", &["-o", "link"]).contains("fcv7"));
    });
}
