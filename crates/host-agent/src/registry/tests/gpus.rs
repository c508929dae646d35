//! GPUs: who gets which, and that they come back, whatever happens to the agent.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::named;
use super::reattach::{kill, until_running};
use crate::config::QEMU;
use crate::registry::bring_up::Step;
use crate::registry::journal::When;
use crate::registry::{CreateError, Registry};
use crate::testing::{Bench, in_netns};
use crate::vmm::HostDevice;
use fuse_wire_host::{CreateVmRequest, ForkRequest};

const PARTS: [&str; 2] = [
    "c73b0b02-1e4b-4c5a-9d2e-000000000001",
    "c73b0b02-1e4b-4c5a-9d2e-000000000002",
];

/// Two cards with a companion each, and two parts of a third.
fn bench(settings: &[(&str, &str)]) -> Bench {
    let bench = Bench::of(QEMU, settings);
    let root = bench.dir.path();
    for (bus, group) in [("65", "1"), ("66", "2")] {
        for function in 0..2 {
            device(root, &format!("0000:{bus}:00.{function}"), group);
        }
    }
    let vfio = "1 a100 65:00.0 65:00.1 | uuid=GPU-1;model=NVIDIA A100\n\
                1 a100 66:00.0 66:00.1 | uuid=GPU-2;model=NVIDIA A100\n";
    std::fs::write(root.join("vfio-inventory.txt"), vfio).unwrap();
    let mig: String = PARTS
        .map(|uuid| format!("1g.10gb a100 {uuid} GPU-3\n"))
        .concat();
    std::fs::write(root.join("mig-inventory.txt"), mig).unwrap();
    for uuid in PARTS {
        std::fs::create_dir_all(root.join("bus/mdev/devices").join(uuid)).unwrap();
    }
    bench
}

fn device(root: &Path, slot: &str, group: &str) {
    let device = root.join("bus/pci/devices").join(slot);
    let members = root.join("kernel/iommu_groups").join(group).join("devices");
    let driver = root.join("bus/pci/drivers/vfio-pci");
    for dir in [&device, &members, &driver] {
        std::fs::create_dir_all(dir).unwrap();
    }
    symlink(driver, device.join("driver")).unwrap();
    symlink(members.parent().unwrap(), device.join("iommu_group")).unwrap();
    symlink(&device, members.join(slot)).unwrap();
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

/// A layout script that writes down that it ran.
fn script(bench: &Bench, path: &Path) {
    let ran = bench.dir.path().join("ran");
    std::fs::write(path, format!("#!/bin/sh\necho ran >>{}\n", ran.display())).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn runs(bench: &Bench) -> usize {
    let ran = std::fs::read_to_string(bench.dir.path().join("ran"));
    ran.map_or(0, |text| text.lines().count())
}

#[test]
fn bound_devices_are_attached_refused_to_others_and_come_back() {
    in_netns(|| async {
        let bench = bench(&[]);
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
        let bench = bench(&[]);
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
        let bench = bench(&[]);
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
        let bench = bench(&[]);
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
        let dir = tempfile::tempdir().unwrap();
        let script_path = dir.path().join("setup.sh");
        let settings = [
            ("MIG_LIFECYCLE_MANAGED", "1"),
            ("MIG_SETUP_SCRIPT", script_path.to_str().unwrap()),
        ];
        let bench = bench(&settings);
        script(&bench, &script_path);
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(with_parts("a", &PARTS[..1])).await.unwrap();
        registry.create(with_gpus("b", &["GPU-1"])).await.unwrap();
        registry.delete("b").await.unwrap();
        assert_eq!(runs(&bench), 0, "a whole card needs no layout");
        kill(registry).await;
        let path = bench.vm_dir("a").join("meta.json");
        let mut meta: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(meta["gpu_mdevs"][0], PARTS[0]);
        meta["phase"] = "creating".into();
        std::fs::write(&path, meta.to_string()).unwrap();
        let registry = Registry::start(bench.parts()).await.unwrap();
        assert_eq!(runs(&bench), 1);
        assert_eq!(bench.leftovers(), Vec::<String>::new());
        registry.create(with_parts("c", &PARTS[..1])).await.unwrap();
        registry.delete("c").await.unwrap();
        assert_eq!(runs(&bench), 2, "before the delete is answered");
        // A script that is gone, or fails, does not keep a VM.
        registry.create(with_parts("c", &PARTS[..1])).await.unwrap();
        std::fs::write(&script_path, "#!/bin/sh\nexit 1\n").unwrap();
        registry.delete("c").await.unwrap();
        registry.create(with_parts("c", &PARTS[..1])).await.unwrap();
        std::fs::remove_file(&script_path).unwrap();
        registry.delete("c").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn snapshots_and_what_needs_them_are_refused_before_anything_is_made() {
    in_netns(|| async {
        let bench = bench(&[]);
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
