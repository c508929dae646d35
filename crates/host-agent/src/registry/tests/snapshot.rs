//! Snapshots, restores and forks.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use super::named;
use crate::registry::{CreateError, ForkError, Registry, RestoreError, SnapshotError};
use crate::report::chain;
use crate::snapshot::StoreError;
use crate::testing::{Bench, in_netns};
use crate::vmm::fake::Behaviour;
use fuse_wire_host::{CreateVmRequest, ForkRequest, SnapshotKind, SnapshotRequest, VmState};

const NONE: Vec<String> = Vec::new();

fn live() -> SnapshotRequest {
    SnapshotRequest {
        live: Some(true),
        ..SnapshotRequest::default()
    }
}

fn disk() -> SnapshotRequest {
    SnapshotRequest {
        comment: Some("c".into()),
        ..SnapshotRequest::default()
    }
}

fn fork_of(snapshot: &str, name: &str) -> ForkRequest {
    ForkRequest {
        snapshot_id: snapshot.to_owned(),
        name: Some(name.to_owned()),
        ..ForkRequest::default()
    }
}

/// What a guest would write: `text` in the middle of its disk.
fn write_disk(bench: &Bench, vm: &str, text: &str) {
    let disk = bench.vm_dir(vm).join("overlay.img");
    let file = std::fs::OpenOptions::new().write(true).open(disk);
    file.unwrap()
        .write_all_at(text.as_bytes(), 500 << 20)
        .unwrap();
}

fn read_disk(disk: &Path, length: usize) -> String {
    let mut text = vec![0; length];
    let file = std::fs::File::open(disk).unwrap();
    file.read_exact_at(&mut text, 500 << 20).unwrap();
    String::from_utf8(text).unwrap()
}

fn told(bench: &Bench) -> Vec<String> {
    bench.vmm.told().snapshots
}

#[test]
fn a_snapshot_gets_the_id_that_is_asked_for() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        let wanted = || SnapshotRequest {
            snapshot_id: Some("mine".to_owned()),
            ..SnapshotRequest::default()
        };
        let taken = registry.snapshot("vm", wanted()).await.unwrap();
        assert_eq!(taken.snapshot_id, "mine");
        let again = registry.snapshot("vm", wanted()).await.unwrap_err();
        assert!(matches!(again, SnapshotError::Exists { .. }), "{again}");
        assert_eq!(registry.snapshots("vm").unwrap(), [taken]);
    });
}

#[test]
fn a_disk_snapshot_is_taken_restored_and_forked() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        write_disk(&bench, "vm", "first");
        let taken = registry.snapshot("vm", disk()).await.unwrap();
        assert_eq!(told(&bench), ["freeze", "thaw"]);
        assert_eq!(
            (taken.kind, taken.comment.as_str()),
            (SnapshotKind::Disk, "c")
        );
        assert_eq!((taken.digest.len(), taken.pause_ms), (64, None));
        assert!(
            taken.size_bytes > 0 && taken.size_bytes < 4 << 20,
            "{taken:?}"
        );
        let listed = registry.snapshots("vm").unwrap();
        assert_eq!(listed, std::slice::from_ref(&taken));

        write_disk(&bench, "vm", "after");
        let overlay = bench.vm_dir("vm").join("overlay.img");
        let inode = std::fs::metadata(&overlay).unwrap().ino();
        let before = bench.vmm.processes();
        let restored = registry.restore("vm", &taken.snapshot_id).await.unwrap();
        assert_eq!(
            (restored.kind, restored.clock_synced),
            (SnapshotKind::Disk, None)
        );
        assert_eq!(read_disk(&overlay, 5), "first");
        assert_ne!(std::fs::metadata(&overlay).unwrap().ino(), inode);
        assert_ne!(bench.vmm.processes(), before);
        assert_eq!(registry.get("vm").unwrap().state, Some(VmState::Running));
        assert_eq!(std::fs::read_dir(bench.vm_dir("vm")).unwrap().count(), 3);

        let forked = registry
            .fork("vm", fork_of(&taken.snapshot_id, "fork"))
            .await
            .unwrap();
        assert_eq!(forked.vm_id, "fork");
        assert_eq!(
            read_disk(&bench.vm_dir("fork").join("overlay.img"), 5),
            "first"
        );
        // Snapshots outlive their VM.
        registry.delete("vm").await.unwrap();
        registry.delete("fork").await.unwrap();
        let seeded = CreateVmRequest {
            seed_snapshot: Some(taken.snapshot_id.clone()),
            storage_gb: Some(2),
            ..named("seeded")
        };
        registry.create(seeded).await.unwrap();
        let overlay = bench.vm_dir("seeded").join("overlay.img");
        assert_eq!(read_disk(&overlay, 5), "first");
        assert_eq!(std::fs::metadata(&overlay).unwrap().len(), 2 << 30);
        registry.delete("seeded").await.unwrap();
        registry.delete_snapshot(&taken.snapshot_id).await.unwrap();
        let again = registry.delete_snapshot(&taken.snapshot_id).await;
        assert!(matches!(again, Err(StoreError::NotFound)), "{again:?}");
        assert_eq!(bench.leftovers(), NONE);
    });
}

#[test]
fn a_live_snapshot_pauses_once_and_resumes_whatever_fails() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        write_disk(&bench, "vm", "first");
        let taken = registry.snapshot("vm", live()).await.unwrap();
        assert_eq!(told(&bench), ["sync", "pause", "save", "resume"]);
        assert_eq!(taken.kind, SnapshotKind::Live);
        assert!(taken.pause_ms.unwrap() > 0.0);

        bench.vmm.behave(Behaviour::NoSave);
        let error = registry.snapshot("vm", live()).await.unwrap_err();
        assert!(chain(&error).contains("no space"), "{error:?}");
        assert_eq!(told(&bench).last().unwrap(), "resume");
        assert_eq!(
            registry.snapshots("vm").unwrap().len(),
            1,
            "no half snapshot is visible"
        );
        let store = std::fs::read_dir(&bench.config.paths.snapshots).unwrap();
        assert_eq!(store.count(), 1);

        bench.vmm.behave(Behaviour::Serve);
        write_disk(&bench, "vm", "after");
        let restored = registry.restore("vm", &taken.snapshot_id).await.unwrap();
        assert_eq!(
            (restored.kind, restored.clock_synced),
            (SnapshotKind::Live, Some(true))
        );
        assert_eq!(restored.boot_id.as_deref(), Some("boot"));
        let version = registry.get("vm").unwrap().guest_version;
        assert_eq!(version.as_deref(), Some("0.0.0"));
        let told = told(&bench);
        assert_eq!(told[told.len() - 2..], ["load", "resumed"]);
        assert_eq!(
            read_disk(&bench.vm_dir("vm").join("overlay.img"), 5),
            "first"
        );
        // Another VM cannot go on with this one's memory.
        registry.create(named("other")).await.unwrap();
        let foreign = registry.restore("other", &taken.snapshot_id).await;
        assert!(
            matches!(foreign, Err(RestoreError::Foreign { .. })),
            "{foreign:?}"
        );
        // Its disk is a disk like any other.
        registry
            .fork("vm", fork_of(&taken.snapshot_id, "fork"))
            .await
            .unwrap();
        for vm in ["vm", "other", "fork"] {
            registry.delete(vm).await.unwrap();
        }
        assert_eq!(bench.leftovers(), NONE);
    });
}

#[test]
fn a_guest_that_cannot_hold_still_is_paused() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        for (behaviour, want) in [
            (Behaviour::NoFreeze, &["pause", "resume"][..]),
            (
                Behaviour::ShortHold,
                &["freeze", "thaw", "freeze", "pause", "resume", "thaw"],
            ),
        ] {
            bench.vmm.behave(behaviour);
            registry.create(named("vm")).await.unwrap();
            let before = told(&bench).len();
            let taken = registry.snapshot("vm", disk()).await.unwrap();
            assert_eq!(told(&bench)[before..], *want);
            assert!(taken.pause_ms.is_some());
            registry.delete("vm").await.unwrap();
        }
    });
}

#[test]
fn a_restore_that_fails_brings_the_vm_of_before_back() {
    in_netns(|| async {
        let bench = Bench::with(&[("FUSE_BOOT_TIMEOUT", "1")]);
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        write_disk(&bench, "vm", "first");
        let taken = registry.snapshot("vm", live()).await.unwrap();
        write_disk(&bench, "vm", "after");
        bench.vmm.behave(Behaviour::Refuse);
        let error = registry
            .restore("vm", &taken.snapshot_id)
            .await
            .unwrap_err();
        // Neither comes up while the program refuses everything.
        assert!(matches!(error, RestoreError::Stopped { .. }), "{error:?}");
        assert!(
            chain(&error).contains("another version"),
            "{}",
            chain(&error)
        );
        assert_eq!(registry.get("vm").unwrap().state, Some(VmState::Stopped));
        let overlay = bench.vm_dir("vm").join("overlay.img");
        assert_eq!(read_disk(&overlay, 5), "after");
        assert_eq!(std::fs::read_dir(bench.vm_dir("vm")).unwrap().count(), 3);
        // A stopped VM can be restored.
        bench.vmm.behave(Behaviour::Serve);
        registry.restore("vm", &taken.snapshot_id).await.unwrap();
        assert_eq!(read_disk(&overlay, 5), "first");
        registry.delete("vm").await.unwrap();
        assert_eq!(bench.leftovers(), NONE);
    });
}

#[test]
fn a_restore_that_was_cut_short_is_settled_at_the_next_start() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        write_disk(&bench, "vm", "first");
        registry.shut_down().await;
        drop(registry);
        let dir = bench.vm_dir("vm");
        let (current, previous) = (dir.join("overlay.img"), dir.join("overlay.previous"));
        // Killed before the VMM was ended.
        std::fs::write(dir.join("overlay.restore"), b"half").unwrap();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.lease("vm").unwrap();
        registry.snapshot("vm", disk()).await.unwrap();
        assert!(!dir.join("overlay.restore").exists());
        assert!(told(&bench).contains(&"resume".to_owned()));
        registry.shut_down().await;
        drop(registry);
        // Killed after the disk was replaced, before the guest had answered.
        bench.vmm.crash("vm");
        std::fs::rename(&current, &previous).unwrap();
        std::fs::write(&current, b"restored").unwrap();
        let registry = Registry::start(bench.parts()).await.unwrap();
        while registry.get("vm").unwrap().state != Some(VmState::Running) {
            tokio::task::yield_now().await;
        }
        assert_eq!(read_disk(&current, 5), "first");
        assert!(!previous.exists());
        registry.delete("vm").await.unwrap();
        assert_eq!(bench.leftovers(), NONE);
    });
}

#[test]
fn what_cannot_be_is_refused() {
    in_netns(|| async {
        let bench = Bench::new();
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        let taken = registry.snapshot("vm", disk()).await.unwrap();
        let id = &taken.snapshot_id;
        assert!(matches!(
            registry.snapshot("no", disk()).await,
            Err(SnapshotError::Vm(_))
        ));
        assert!(matches!(
            registry.restore("no", id).await,
            Err(RestoreError::Vm(_))
        ));
        let restore = registry.restore("vm", "../vms/vm").await;
        assert!(matches!(
            restore,
            Err(RestoreError::Snapshot(StoreError::NotFound))
        ));
        let fork = registry.fork("no", fork_of(id, "f")).await;
        assert!(matches!(fork, Err(ForkError::Source(_))));
        let fork = registry.fork("vm", fork_of("snap-0", "f")).await;
        assert!(matches!(
            fork,
            Err(ForkError::Create(CreateError::Seed(StoreError::NotFound)))
        ));
        let fork = registry.fork("vm", fork_of(id, "vm")).await;
        assert!(matches!(
            fork,
            Err(ForkError::Create(CreateError::Exists { .. }))
        ));
        let gpus = CreateVmRequest {
            gpu_uuids: vec!["GPU-1".into()],
            ..named("gpu")
        };
        let gpus = registry.create(gpus).await;
        assert!(matches!(gpus, Err(CreateError::NoGpus)), "{gpus:?}");
        bench.vmm.crash("vm");
        while registry.get("vm").unwrap().state != Some(VmState::Stopped) {
            tokio::task::yield_now().await;
        }
        let stopped = registry.snapshot("vm", disk()).await.unwrap_err();
        assert!(stopped.to_string().contains("is stopped"), "{stopped}");
        registry.delete("vm").await.unwrap();
    });
}

#[test]
fn a_full_disk_leaves_no_half_snapshot_and_says_how_much_was_missing() {
    in_netns(|| async {
        let bench = Bench::new();
        let small = bench.dir.path().join("small");
        std::fs::create_dir(&small).unwrap();
        // Mounts of this thread's own, so that nothing outlives the test.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let size = Some("size=8m");
        nix::mount::mount(
            Some("tmpfs"),
            &small,
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            size,
        )
        .unwrap();
        let settings = [("SNAPSHOTS_DIR", small.to_str().unwrap())];
        let bench = Bench::with(&settings);
        let registry = Registry::start(bench.parts()).await.unwrap();
        registry.create(named("vm")).await.unwrap();
        write_disk(&bench, "vm", &"x".repeat(20 << 20));
        let error = registry.snapshot("vm", disk()).await.unwrap_err();
        let text = chain(&error);
        assert!(
            text.contains("lacks 1") && text.contains("MiB of disk space"),
            "{text}"
        );
        let full = crate::disk::sealed::copy(
            &bench.vm_dir("vm").join("overlay.img"),
            &small.join("copy"),
            &Default::default(),
            || (),
        );
        let full = full.unwrap_err().to_string();
        assert!(full.contains("MiB more were needed"), "{full}");
        std::fs::remove_file(small.join("copy")).unwrap();
        assert_eq!(std::fs::read_dir(&small).unwrap().count(), 0);
        assert_eq!(registry.get("vm").unwrap().state, Some(VmState::Running));
        registry.delete("vm").await.unwrap();
    });
}
