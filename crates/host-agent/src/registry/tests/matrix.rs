//! Kills the agent at every place of every operation, starts it again where it was, and checks that
//! no device, rule, process, file or snapshot is there that no VM has, and that VMs which were there
//! before still are.
//!
//! The places are counted, not listed (`fail_point`): an operation is repeated in a fresh directory,
//! dying one place later each time, until it comes to its end alive. The agent that dies is this
//! test program, started anew.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use fuse_wire_host::{
    AgentToken, Expose, ForkRequest, Grant, PullRequest, SnapshotRequest, StartAgentRequest,
    VmState,
};

use super::named;
use crate::config::FIRECRACKER;
use crate::fail_point;
use crate::registry::Registry;
use crate::testing::{Bench, Served, in_netns, run};
use crate::vmm::fake::Behaviour;

/// What the program that dies is to do: operation, place, directory.
const TASK: &str = "FUSE_MATRIX_TASK";
/// Where it fetches a disk from, and the disk's digest.
const PEER: &str = "FUSE_MATRIX_PEER";
/// No operation has as many places.
const MOST: u64 = 80;

/// Does one operation in an agent that dies at a place of it. Not a test by itself: without a task
/// there is nothing to do.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let mut words = task.splitn(3, ' ');
    let (operation, at, dir) = (
        words.next().unwrap(),
        words.next().unwrap().parse().unwrap(),
        words.next().unwrap(),
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work(operation, at, Path::new(dir)));
}

async fn work(operation: &str, at: u64, dir: &Path) {
    let bench = Bench::at(dir.to_owned(), FIRECRACKER, &[]);
    let registry = Registry::start(bench.parts()).await.unwrap();
    registry.create(named("bystander")).await.unwrap();
    let mut snapshot = String::new();
    if !matches!(operation, "create" | "undone" | "pull") {
        registry.create(named("subject")).await.unwrap();
    }
    if matches!(operation, "fork" | "restore" | "live-restore" | "forget") {
        let request = of_kind(operation);
        snapshot = registry
            .snapshot("subject", request)
            .await
            .unwrap()
            .snapshot_id;
    }
    if operation == "undone" {
        bench.vmm.behave(Behaviour::Refuse);
    }
    fail_point::arm(at);
    match operation {
        "create" => drop(registry.create(named("subject")).await.unwrap()),
        "undone" => drop(registry.create(named("subject")).await.unwrap_err()),
        "fork" => {
            let request = ForkRequest {
                snapshot_id: snapshot,
                name: Some("fork".to_owned()),
                ..ForkRequest::default()
            };
            registry.fork("subject", request).await.unwrap();
        }
        "publish" => {
            let request = StartAgentRequest {
                expose: vec![Expose {
                    port: 80,
                    name: "web".to_owned(),
                    protocol: fuse_wire_host::start_agent::Protocol::Tcp,
                }],
                ..StartAgentRequest::default()
            };
            registry.start_agent("subject", request).await.unwrap();
        }
        "snapshot" | "live-snapshot" => {
            let taken = registry.snapshot("subject", of_kind(operation)).await;
            taken.unwrap();
        }
        "restore" | "live-restore" => drop(registry.restore("subject", &snapshot).await.unwrap()),
        "forget" => registry.delete_snapshot(&snapshot).await.unwrap(),
        "pull" => pull(&registry, &std::env::var(PEER).unwrap()).await,
        "destroy" => registry.delete("subject").await.unwrap(),
        other => panic!("no operation {other}"),
    }
    fail_point::arm(0);
}

/// Live where the machine goes on from it, or where it is what is tested.
fn of_kind(operation: &str) -> SnapshotRequest {
    SnapshotRequest {
        live: Some(matches!(
            operation,
            "live-snapshot" | "live-restore" | "forget"
        )),
        ..SnapshotRequest::default()
    }
}

/// Fetches what the peer has.
async fn pull(registry: &Registry, peer: &str) {
    let (url, digest) = peer.split_once(' ').unwrap();
    let limit = std::time::Duration::from_secs(300);
    let request = PullRequest {
        peer_url: url.to_owned(),
        grant: Grant::mint(&AgentToken::new("t0ken"), digest, limit).unwrap(),
        ..PullRequest::default()
    };
    let pulled = registry.artifacts().pull(digest, request).unwrap();
    assert_eq!(pulled.ended().await.unwrap().digest, digest);
}

/// An agent with a base image and a snapshot that the one that dies does not have.
async fn peer() -> (Served, String) {
    let settings = [
        ("FUSE_NFT_TABLE", "peer"),
        ("FUSE_TAP_PREFIX", "peer"),
        ("FUSE_SUBNET", "10.210.0.0/16"),
    ];
    let bench = Bench::with(&settings);
    let base = bench.dir.path().join("rootfs-fused.ext4");
    std::fs::write(base, b"an image of its own").unwrap();
    let peer = Served::on(bench).await;
    peer.registry.create(named("origin")).await.unwrap();
    let taken = peer.registry.snapshot("origin", SnapshotRequest::default());
    let taken = taken.await.unwrap();
    let place = format!("http://{} {}", peer.address, taken.digest);
    (peer, place)
}

/// Runs the operation in a program that dies at its place. Whether it did.
fn died(operation: &str, at: u64, dir: &Path, peer: &str) -> bool {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["registry::tests::matrix::child", "--exact", "--nocapture"])
        .env(TASK, format!("{operation} {at} {}", dir.display()))
        .env(PEER, peer)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let died = done.status.signal() == Some(9);
    assert!(died || done.status.success(), "{operation} at {at}: {said}");
    died
}

/// Starts an agent where one has died and checks what there is.
async fn recover(operation: &str, at: u64, dir: &Path, peer: &str) {
    let place = format!("{operation} at {at}");
    let bench = Bench::at(dir.to_owned(), FIRECRACKER, &[]);
    let registry = Registry::start(bench.parts()).await.unwrap();
    let settled = |state| matches!(state, Some(VmState::Running | VmState::Stopped));
    while !registry.list("").iter().all(|vm| settled(vm.state)) {
        tokio::task::yield_now().await;
    }
    let vms = registry.list("");
    let ids: BTreeSet<&str> = vms.iter().map(|vm| vm.vm_id.as_str()).collect();
    assert!(ids.contains("bystander"), "{place}: {ids:?}");
    assert!(
        vms.iter().all(|vm| vm.state == Some(VmState::Running)),
        "{place}: {vms:?}"
    );
    if !matches!(operation, "create" | "undone" | "destroy" | "pull") {
        assert!(ids.contains("subject"), "{place}: {ids:?}");
    }
    check_host(&bench, ids.len(), &place);
    // What is there can be used and goes without a trace.
    for vm in &vms {
        let lease = registry.lease(&vm.vm_id).unwrap();
        drop(lease);
        registry.delete(&vm.vm_id).await.unwrap();
    }
    assert_eq!(bench.leftovers(), Vec::<String>::new(), "{place}");
    check_host(&bench, 0, &place);
    if operation == "pull" {
        let paths = &bench.config.paths;
        let dirs = [
            paths.state.join("artifact-pull-tmp"),
            paths.state.join("images"),
        ];
        let partial = dirs.iter().flat_map(|dir| files(dir));
        let partial: Vec<_> = partial.filter(|name| name.starts_with("pull-")).collect();
        assert!(partial.is_empty(), "{place}: {partial:?}");
        // Again, whether or not it is there.
        pull(&registry, peer).await;
    }
    // Each is whole: what is there by its name is known by it.
    for id in files(registry.host().snapshots.dir()) {
        registry.delete_snapshot(&id).await.unwrap();
    }
    let left = files(registry.host().snapshots.dir());
    assert!(left.is_empty(), "{place}: {left:?}");
    registry.shut_down().await;
}

/// One of everything for each VM, and no more.
fn check_host(bench: &Bench, vms: usize, place: &str) {
    let taps = run("ip", &["-o", "link"]);
    let taps = taps.lines().filter(|line| line.contains(": fcv")).count();
    assert_eq!(taps, vms, "{place}: taps");
    let dirs = std::fs::read_dir(bench.config.paths.state.join("vms")).unwrap();
    assert_eq!(dirs.count(), vms, "{place}: directories");
    assert_eq!(processes(bench.dir.path()), vms, "{place}: VMMs");
    let rules = run("nft", &["list", "table", "inet", "fuse"]);
    let known = rules.matches("\"fcv").collect::<Vec<_>>().len();
    assert_eq!(known == 0, vms == 0, "{place}: {rules}");
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

/// Session leaders that were started with a path in this directory: the VMMs.
fn processes(dir: &Path) -> usize {
    let wanted = dir.join("s");
    let wanted = wanted.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| String::from_utf8_lossy(line).contains(wanted))
        .count()
}

fn matrix(operation: &'static str) {
    for at in 1..=MOST {
        let (sender, answer) = std::sync::mpsc::channel();
        in_netns(move || async move {
            let dir = tempfile::tempdir().unwrap();
            let (peer, place) = if operation == "pull" {
                let (peer, place) = peer().await;
                (Some(peer), place)
            } else {
                (None, String::new())
            };
            let (there, from) = (dir.path().to_owned(), place.clone());
            // Beside the peer, which serves it.
            let died = tokio::task::spawn_blocking(move || died(operation, at, &there, &from));
            let died = died.await.unwrap();
            recover(operation, at, dir.path(), &place).await;
            if let Some(peer) = peer {
                peer.registry.delete("origin").await.unwrap();
                peer.stop().await;
            }
            sender.send(died).unwrap();
        });
        match answer.recv() {
            Ok(true) => {}
            Ok(false) => {
                assert!(at > 2, "{operation} has places");
                let count = at - 1;
                // Past the capture of the test harness.
                writeln!(
                    std::io::stderr().lock(),
                    "recovery matrix of the agent: {operation} died at {count} places"
                )
                .unwrap();
                return;
            }
            // Skipped: said already.
            Err(_) => return,
        }
    }
    panic!("{operation} never comes to its end");
}

#[test]
fn a_create_that_dies() {
    matrix("create");
}

#[test]
fn a_create_that_is_undone_and_dies() {
    matrix("undone");
}

#[test]
fn a_fork_that_dies() {
    matrix("fork");
}

#[test]
fn a_publication_that_dies() {
    matrix("publish");
}

#[test]
fn a_snapshot_that_dies() {
    matrix("snapshot");
}

#[test]
fn a_live_snapshot_that_dies() {
    matrix("live-snapshot");
}

#[test]
fn the_end_of_a_snapshot_that_dies() {
    matrix("forget");
}

#[test]
fn a_restore_that_dies() {
    matrix("restore");
}

#[test]
fn a_live_restore_that_dies() {
    matrix("live-restore");
}

#[test]
fn a_pull_that_dies() {
    matrix("pull");
}

#[test]
fn a_destroy_that_dies() {
    matrix("destroy");
}
