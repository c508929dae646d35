//! Creating: what is refused, and that nothing is left of what fails.

use super::named;
use crate::registry::bring_up::Step;
use crate::registry::journal::When;
use crate::registry::{CreateError, Registry};
use crate::report::chain;
use crate::testing::{Bench, in_netns, run};
use crate::vmm::fake::Behaviour;
use fuse_wire_host::{CreateVmRequest, VmState};

#[test]
fn a_vm_has_everything_of_its_slot() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        let made = registry
            .create(CreateVmRequest {
                owner: Some("fleet".into()),
                ..named("My VM")
            })
            .await
            .unwrap();
        assert_eq!(
            (made.vm_id.as_str(), made.url.as_str()),
            ("my-vm", "127.0.0.1:19551")
        );
        let timings = made.timings_ms.unwrap();
        assert!(
            timings.total > 0.0 && timings.steps.contains_key("tap"),
            "{timings:?}"
        );
        let view = registry.get("my-vm").unwrap();
        assert_eq!(view.state, Some(VmState::Running));
        assert_eq!(
            (view.name.as_deref(), view.owner.as_deref()),
            (Some("My VM"), Some("fleet"))
        );
        assert!(run("ip", &["-4", "addr", "show", "fcv1"]).contains("10.200.1.1/30"));
        let rules = run("nft", &["list", "table", "inet", "fuse"]);
        assert!(
            rules.contains("\"fcv1\" . 10.200.1.2 . 06:00:ac:10:01:02"),
            "{rules}"
        );
        assert!(
            !rules.contains("9550"),
            "no port leads to a surface that was not started"
        );
        let meta = std::fs::read_to_string(bench.vm_dir("my-vm").join("meta.json")).unwrap();
        assert!(meta.contains("\"phase\": \"ready\""), "{meta}");
        registry.delete("my-vm").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
        assert!(registry.get("my-vm").is_err());
    });
}

#[test]
fn a_failure_at_any_step_leaves_nothing() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        for step in Step::ALL {
            for when in [When::Before, When::After] {
                *registry.host().faults.lock().unwrap() = Some((step, when));
                let error = registry.create(named("vm")).await.unwrap_err();
                assert!(
                    matches!(error, CreateError::Step { .. }),
                    "{step:?} {when:?}: {error:?}"
                );
                assert!(
                    chain(&error).contains("injected"),
                    "{step:?}: {}",
                    chain(&error)
                );
                assert_eq!(bench.leftovers(), Vec::<String>::new(), "{step:?} {when:?}");
                assert!(registry.list("").is_empty());
            }
        }
        *registry.host().faults.lock().unwrap() = None;
        // The name and the number are free again.
        assert_eq!(
            registry.create(named("vm")).await.unwrap().url,
            "127.0.0.1:19551"
        );
        registry.delete("vm").await.unwrap();
    });
}

#[test]
fn a_vmm_or_guest_that_fails_is_explained_and_leaves_nothing() {
    in_netns(|| async {
        let bench = Bench::with(&[("FUSE_BOOT_TIMEOUT", "1")]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        for (behaviour, want) in [
            (Behaviour::NoProgram, "cannot start the VMM /nowhere/vmm"),
            (
                Behaviour::Refuse,
                "refused /boot-source with status 400: no such kernel",
            ),
            (
                Behaviour::Die,
                "ended during the boot; its last words: vmm started",
            ),
            (
                Behaviour::Silent,
                "did not answer within 1 s; the end of its log: vmm started",
            ),
            (
                Behaviour::Unusable("it has no /bin/sh"),
                "rootfs-fused.ext4 cannot be used: it has no /bin/sh",
            ),
        ] {
            bench.vmm.behave(behaviour);
            let error = chain(&registry.create(named("vm")).await.unwrap_err());
            assert!(error.contains(want), "{error}");
            assert_eq!(bench.leftovers(), Vec::<String>::new(), "{want}");
        }
    });
}

#[test]
fn bad_requests_are_refused_before_anything_is_made() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        let long = "x".repeat(101);
        for (request, want) in [
            (named(&long), "too long"),
            (
                CreateVmRequest {
                    cpus: Some(5),
                    ..named("vm")
                },
                "cpus must be 1 to 4, not 5",
            ),
            (
                CreateVmRequest {
                    memory_mb: Some(64),
                    ..named("vm")
                },
                "memory_mb must be 128",
            ),
            (
                CreateVmRequest {
                    storage_gb: Some(99_999),
                    ..named("vm")
                },
                "storage_gb must be",
            ),
            (
                CreateVmRequest {
                    image: Some("absent".into()),
                    ..named("vm")
                },
                "bake it and place",
            ),
            (
                CreateVmRequest {
                    image: Some("../x".into()),
                    ..named("vm")
                },
                "not a valid image",
            ),
        ] {
            let error = chain(&registry.create(request).await.unwrap_err());
            assert!(error.contains(want), "{error}");
        }
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn a_full_host_and_a_taken_name_are_refused() {
    in_netns(|| async {
        let bench = Bench::with(&[("FUSE_MAX_VMS", "2")]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        let (a, b) = tokio::join!(registry.create(named("a")), registry.create(named("b")));
        let a = a.unwrap();
        assert_ne!(a.url, b.unwrap().url);
        let taken = registry.create(named("A")).await.unwrap_err();
        assert!(
            matches!(&taken, CreateError::Exists { id } if id == "a"),
            "{taken:?}"
        );
        let full = registry.create(named("c")).await.unwrap_err();
        assert!(matches!(full, CreateError::Full { max: 2 }), "{full:?}");
        registry.delete("a").await.unwrap();
        assert_eq!(registry.create(named("c")).await.unwrap().url, a.url);
        let ids: Vec<_> = registry.list("").into_iter().map(|vm| vm.vm_id).collect();
        assert_eq!(ids, ["b", "c"]);
        assert_eq!(registry.list("c").len(), 1);
        for id in ids {
            registry.delete(&id).await.unwrap();
        }
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn a_directory_that_is_not_a_vm_is_left_alone() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        let kept = bench.vm_dir("vm").join("kept");
        std::fs::create_dir(bench.vm_dir("vm")).unwrap();
        std::fs::write(&kept, b"x").unwrap();
        let error = registry.create(named("vm")).await.unwrap_err();
        assert!(matches!(error, CreateError::Exists { .. }), "{error:?}");
        assert!(kept.exists());
        assert!(registry.list("").is_empty());
    });
}

#[test]
fn a_host_low_on_space_refuses() {
    in_netns(|| async {
        let bench = Bench::with(&[("FUSE_MIN_FREE_MB", "999999999")]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        let error = registry.create(named("vm")).await.unwrap_err();
        assert!(matches!(error, CreateError::Space(_)), "{error:?}");
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}

#[test]
fn a_create_whose_caller_left_is_finished() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        let create = registry.create(named("vm"));
        tokio::select! {
            biased;
            _ = create => panic!("it cannot be done at once"),
            // The VM is known as soon as its task is started.
            () = async { while registry.list("").is_empty() { tokio::task::yield_now().await; } } => {}
        }
        // A delete waits for the task, so whatever it does is over then.
        registry.delete("vm").await.unwrap();
        assert_eq!(bench.leftovers(), Vec::<String>::new());
    });
}
