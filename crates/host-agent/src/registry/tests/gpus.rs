//! GPUs: who gets which, and that they come back, whatever happens to the agent.

use super::named;
use super::reattach::{kill, until_running};
use crate::config::QEMU;
use crate::registry::bring_up::Step;
use crate::registry::journal::When;
use crate::registry::{CreateError, Registry};
use crate::testing::{Bench, in_netns};
use crate::vmm::HostDevice;
use fuse_testkit::gpu_tree::{GpuTree, PARTS};
use fuse_wire_host::{CreateVmRequest, ForkRequest};

/// An agent on a host of files.
fn bench(settings: &[(&str, &str)]) -> (Bench, GpuTree) {
    let bench = Bench::of(QEMU, settings);
    let tree = GpuTree::new(bench.dir.path().to_owned()).unwrap();
    (bench, tree)
}

fn with_gpus(name: &str, uuids: &[&str]) -> CreateVmRequest {
    CreateVmRequest {
        gpus: u32::try_from(uuids.len()).ok(),
        gpu_uuids: uuids.iter().map(|uuid| (*uuid).to_owned()).collect(),
        ..named(name)
    }
}

fn with_parts(name: &str, uuids: &[&str]) -> CreateVmRequest {
    CreateVmRequest {
        gpus: u32::try_from(uuids.len()).ok(),
        gpu_profile: Some("1G.10GB".into()),
        mig_instance_uuids: uuids.iter().map(|uuid| (*uuid).to_owned()).collect(),
        ..named(name)
    }
}

fn given(bench: &Bench, vm: &str) -> Vec<HostDevice> {
    bench.vmm.given.lock().unwrap()[vm].clone()
}

fn card(bus: &str) -> Vec<HostDevice> {
    let slot = |function| format!("0000:{bus}:00.{function}").parse().unwrap();
    (0..2)
        .map(|function| HostDevice::Pci(slot(function)))
        .collect()
}

#[test]
fn bound_devices_are_attached_refused_to_others_and_come_back() {
    in_netns(|| async {
        let (bench, _tree) = bench(&[]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(with_gpus("a", &["GPU-2"])).await.unwrap();
        assert_eq!(given(&bench, "a"), card("66"));
        let taken = registry
            .create(with_gpus("b", &["GPU-2"]))
            .await
            .unwrap_err();
        assert_eq!(taken.to_string(), "GPU GPU-2 is in use by vm a");
        registry.create(with_gpus("b", &["GPU-1"])).await.unwrap();
        assert_eq!(given(&bench, "b"), card("65"));
        registry.create(with_parts("c", &PARTS[1..])).await.unwrap();
        assert_eq!(given(&bench, "c"), [HostDevice::Mediated(PARTS[1].into())]);
        registry.create(named("plain")).await.unwrap();
        assert_eq!(given(&bench, "plain"), []);
        // Without names: whatever is free, which is nothing whole and one part.
        let any = CreateVmRequest {
            gpus: Some(1),
            ..named("d")
        };
        assert!(matches!(
            registry.create(any.clone()).await,
            Err(CreateError::Gpus(_))
        ));
        registry.delete("a").await.unwrap();
        registry.create(any).await.unwrap();
        assert_eq!(given(&bench, "d"), card("66"), "exactly what a gave back");
        for vm in ["b", "c", "d", "plain"] {
            registry.delete(vm).await.unwrap();
        }
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn of_two_creates_at_once_one_gets_the_device() {
    in_netns(|| async {
        let (bench, _tree) = bench(&[]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        let (a, b) = tokio::join!(
            registry.create(with_gpus("a", &["GPU-1"])),
            registry.create(with_gpus("b", &["GPU-1"])),
        );
        assert_eq!(
            usize::from(a.is_ok()) + usize::from(b.is_ok()),
            1,
            "{a:?} {b:?}"
        );
    });
}

#[test]
fn a_failure_at_any_step_gives_the_devices_back() {
    in_netns(|| async {
        let (bench, _tree) = bench(&[]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        for step in Step::ALL {
            for when in [When::Before, When::After] {
                *registry.host().faults.lock().unwrap() = Some((step, when));
                let error = registry
                    .create(with_gpus("vm", &["GPU-1"]))
                    .await
                    .unwrap_err();
                assert!(
                    matches!(error, CreateError::Step { .. }),
                    "{step:?} {when:?}: {error:?}"
                );
                assert_eq!(bench.leftovers(), Vec::<String>::new(), "{step:?} {when:?}");
            }
        }
        *registry.host().faults.lock().unwrap() = None;
        registry.create(with_gpus("vm", &["GPU-1"])).await.unwrap();
    });
}

#[test]
fn bindings_outlive_the_agent() {
    in_netns(|| async {
        let (bench, _tree) = bench(&[]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(with_gpus("a", &["GPU-1"])).await.unwrap();
        registry.create(with_parts("b", &PARTS[..1])).await.unwrap();
        kill(registry).await;
        bench.vmm.crash("b");
        bench.vmm.given.lock().unwrap().clear();
        let registry = Registry::start(bench.parts()).await.unwrap();
        for request in [with_gpus("x", &["GPU-1"]), with_parts("x", &PARTS[..1])] {
            let error = registry.create(request).await.unwrap_err();
            assert!(matches!(error, CreateError::Gpus(_)), "{error:?}");
        }
        until_running(&registry, "b").await;
        assert_eq!(
            given(&bench, "b"),
            [HostDevice::Mediated(PARTS[0].into())],
            "booted with its own"
        );
        registry.delete("a").await.unwrap();
        registry.create(with_gpus("x", &["GPU-1"])).await.unwrap();
    });
}

#[test]
fn a_create_that_was_cut_off_gives_back_and_the_layout_is_applied_again() {
    in_netns(|| async {
        let elsewhere = tempfile::tempdir().unwrap();
        let script = elsewhere.path().join("script");
        let settings = [
            ("MIG_LIFECYCLE_MANAGED", "1"),
            ("MIG_SETUP_SCRIPT", script.to_str().unwrap()),
        ];
        let (bench, tree) = bench(&settings);
        std::fs::copy(tree.layout_script(), &script).unwrap();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(with_parts("a", &PARTS[..1])).await.unwrap();
        registry.create(with_gpus("b", &["GPU-1"])).await.unwrap();
        registry.delete("b").await.unwrap();
        assert_eq!(tree.layouts(), 0, "a whole card needs no layout");
        kill(registry).await;
        let path = bench.vm_dir("a").join("meta.json");
        let mut meta: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(meta["gpu_mdevs"][0], PARTS[0]);
        meta["phase"] = "creating".into();
        std::fs::write(&path, meta.to_string()).unwrap();
        let registry = Registry::start(bench.parts()).await.unwrap();
        assert_eq!(tree.layouts(), 1);
        assert_eq!(bench.leftovers(), Vec::<String>::new());
        registry.create(with_parts("c", &PARTS[..1])).await.unwrap();
        registry.delete("c").await.unwrap();
        assert_eq!(tree.layouts(), 2, "before the delete is answered");
        // A script that is gone, or fails, does not keep a VM.
        registry.create(with_parts("c", &PARTS[..1])).await.unwrap();
        std::fs::write(&script, "#!/bin/sh\nexit 1\n").unwrap();
        registry.delete("c").await.unwrap();
        registry.create(with_parts("c", &PARTS[..1])).await.unwrap();
        std::fs::remove_file(&script).unwrap();
        registry.delete("c").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn snapshots_and_what_needs_them_are_refused_before_anything_is_made() {
    in_netns(|| async {
        let (bench, _tree) = bench(&[]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        assert!(registry.snapshots_possible().is_err());
        let seeded = CreateVmRequest {
            seed_snapshot: Some("snap-1".into()),
            ..named("a")
        };
        let error = registry.create(seeded).await.unwrap_err();
        assert!(matches!(error, CreateError::Unsupported(_)), "{error:?}");
        registry.create(named("a")).await.unwrap();
        let fork = ForkRequest {
            snapshot_id: "snap-1".into(),
            ..ForkRequest::default()
        };
        let error = registry.fork("a", fork).await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("has no snapshots, restores or forks"),
            "{error}"
        );
    });
}
