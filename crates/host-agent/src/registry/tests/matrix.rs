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

use fuse_wire_host::{Expose, ForkRequest, SnapshotRequest, StartAgentRequest, VmState};

use super::named;
use crate::config::FIRECRACKER;
use crate::fail_point;
use crate::registry::Registry;
use crate::testing::{Bench, in_netns, run};
use crate::vmm::fake::Behaviour;

/// What the program that dies is to do: operation, place, directory.
const TASK: &str = "FUSE_MATRIX_TASK";
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
    if operation != "create" && operation != "undone" {
        registry.create(named("subject")).await.unwrap();
    }
    if matches!(operation, "fork" | "restore") {
        let request = SnapshotRequest::default();
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
        "snapshot" => {
            registry
                .snapshot("subject", SnapshotRequest::default())
                .await
                .unwrap();
        }
        "restore" => drop(registry.restore("subject", &snapshot).await.unwrap()),
        "destroy" => registry.delete("subject").await.unwrap(),
        other => panic!("no operation {other}"),
    }
    fail_point::arm(0);
}

/// Runs the operation in a program that dies at its place. Whether it did.
fn died(operation: &str, at: u64, dir: &Path) -> bool {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["registry::tests::matrix::child", "--exact", "--nocapture"])
        .env(TASK, format!("{operation} {at} {}", dir.display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let died = done.status.signal() == Some(9);
    assert!(died || done.status.success(), "{operation} at {at}: {said}");
    died
}

/// Starts an agent where one has died and checks what there is.
async fn recover(operation: &str, at: u64, dir: &Path) {
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
    if !matches!(operation, "create" | "undone" | "destroy") {
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
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let names = std::fs::read_dir(dir).unwrap().map(name);
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
            let died = died(operation, at, dir.path());
            recover(operation, at, dir.path()).await;
            sender.send(died).unwrap();
        });
        match answer.recv() {
            Ok(true) => {}
            Ok(false) => {
                assert!(at > 3, "{operation} has places");
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
fn a_restore_that_dies() {
    matrix("restore");
}

#[test]
fn a_destroy_that_dies() {
    matrix("destroy");
}
