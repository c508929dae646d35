//! An agent that starts where another one was.

use std::path::Path;

use super::named;
use crate::registry::{HostError, LeaseError, Registry};
use crate::testing::{Bench, in_netns, run};
use crate::vmm::fake::Behaviour;
use fuse_wire_host::{ExecRequest, VmState};

/// Drops everything of an agent at once, as a kill does: its tasks end with the runtime's next turn
/// and undo nothing.
pub(super) async fn kill(registry: Registry) {
    registry.host().tasks.close();
    registry.host().shutdown.cancel();
    registry.host().tasks.wait().await;
}

pub(super) async fn until_running(registry: &Registry, id: &str) {
    while registry.get(id).unwrap().state != Some(VmState::Running) {
        tokio::task::yield_now().await;
    }
}

/// Takes a field out of a stored record, as an earlier release would have left it.
fn without(path: &Path, field: &str) {
    let text = std::fs::read(path).unwrap();
    let mut value: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert!(value.as_object_mut().unwrap().remove(field).is_some());
    std::fs::write(path, value.to_string()).unwrap();
}

#[test]
fn a_running_vm_is_adopted_untouched() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        let made = registry.create(named("vm")).await.unwrap();
        assert_eq!(made.guest_version.as_deref(), Some("0.0.0"));
        let before = bench.vmm.processes();
        kill(registry).await;
        run("nft", &["flush", "ruleset"]);
        without(&bench.vm_dir("vm").join("meta.json"), "guest_version");
        let registry = Registry::start(bench.parts()).await.unwrap();
        let view = registry.get("vm").unwrap();
        assert_eq!((view.state, view.url), (Some(VmState::Running), made.url));
        assert_eq!(bench.vmm.processes(), before);
        assert!(run("nft", &["list", "table", "inet", "fuse"]).contains("\"fcv1\" . 10.200.1.2"));
        let request = ExecRequest {
            cmd: vec!["hello".into()],
            ..ExecRequest::default()
        };
        assert_eq!(
            registry
                .lease("vm")
                .unwrap()
                .exec(request)
                .await
                .unwrap()
                .stdout,
            b"hello"
        );
        // An agent that did not note it left it out: its guest is asked.
        while registry.get("vm").unwrap().guest_version.as_deref() != Some("0.0.0") {
            tokio::task::yield_now().await;
        }
        // The number of the adopted VM is taken.
        assert_eq!(
            registry.create(named("b")).await.unwrap().url,
            "127.0.0.1:19552"
        );
        registry.delete("b").await.unwrap();
        registry.delete("vm").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn a_vm_whose_vmm_is_gone_boots_again_where_it_was() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("a")).await.unwrap();
        let made = registry.create(named("b")).await.unwrap();
        registry.delete("a").await.unwrap();
        kill(registry).await;
        bench.vmm.crash("b");
        run("ip", &["link", "del", "fcv2"]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        assert_eq!(registry.get("b").unwrap().state, Some(VmState::Booting));
        assert!(matches!(
            registry.lease("b"),
            Err(LeaseError::Booting { .. })
        ));
        until_running(&registry, "b").await;
        assert_eq!(registry.get("b").unwrap().url, made.url);
        assert!(run("ip", &["-4", "addr", "show", "fcv2"]).contains("10.200.2.1/30"));
        assert_eq!(bench.vmm.processes().len(), 1);
        registry.delete("b").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn a_vm_that_does_not_boot_again_is_stopped_and_can_be_deleted() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        kill(registry).await;
        bench.vmm.crash("vm");
        bench.vmm.behave(Behaviour::Refuse);
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.delete("vm").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn an_unfinished_create_is_swept_with_its_process() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        kill(registry).await;
        // What a kill in the middle of a create leaves: a meta that says so and knows no pid.
        let path = bench.vm_dir("vm").join("meta.json");
        let mut meta: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        meta["phase"] = "creating".into();
        meta.as_object_mut().unwrap().remove("pid");
        meta.as_object_mut().unwrap().remove("pid_start");
        std::fs::write(&path, meta.to_string()).unwrap();
        assert_eq!(bench.vmm.processes().len(), 1);
        let registry = Registry::start(bench.parts()).await.unwrap();
        assert!(registry.list("").is_empty());
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn stray_devices_go_and_damaged_state_stays() {
    in_netns(|| async {
        let bench = Bench::new();
        run("ip", &["tuntap", "add", "fcv9", "mode", "tap"]);
        run("ip", &["tuntap", "add", "fcvx", "mode", "tap"]);
        let damaged = bench.vm_dir("damaged");
        std::fs::create_dir_all(&damaged).unwrap();
        let registry = Registry::start(bench.parts()).await.unwrap();
        let links = run("ip", &["-o", "link"]);
        assert!(!links.contains("fcv9") && links.contains("fcvx"), "{links}");
        assert!(registry.list("").is_empty());
        assert!(registry.create(named("damaged")).await.is_err());
        assert!(damaged.exists());
    });
}

#[test]
fn two_agents_do_not_share_a_directory() {
    in_netns(|| async {
        let bench = Bench::new();
        let _first = Registry::start(bench.parts()).await.unwrap();
        let second = Registry::start(bench.parts()).await.unwrap_err();
        assert!(matches!(second, HostError::Locked { .. }), "{second:?}");
    });
}
