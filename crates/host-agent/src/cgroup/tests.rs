//! Groups of the machine that runs the tests, in whichever version it has them.

use std::process::Command;

use super::*;
use crate::testing::skip;
use crate::vmm::process::{of_session, spawn_detached};
use crate::vmm::{Process, ProcessId};

const LIMITS: Limits = Limits {
    cpus: 1,
    memory_mib: 64,
    io: IoLimits {
        bytes: 0,
        operations: 0,
    },
};

/// The groups of a directory of the test's own; `None`, and says so, where the host has none.
fn groups(dir: &Path) -> Option<Cgroups> {
    let groups = Cgroups::open("test", dir).unwrap();
    let missing: Vec<_> = groups.missing().collect();
    if [Controller::Memory, Controller::Pids]
        .iter()
        .any(|c| missing.contains(c))
    {
        skip("this process may make no control groups with memory and pids");
        return None;
    }
    Some(groups)
}

/// What the kernel says of a process.
fn membership(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap()
}

/// Waits for the end of a process, and reaps it.
async fn gone(id: ProcessId) {
    if let Some(process) = Process::find(id).unwrap() {
        tokio::time::timeout(EMPTY_LIMIT, process.ended())
            .await
            .expect("the process runs on");
    }
}

#[tokio::test]
async fn a_process_is_born_limited_and_its_group_goes_with_all_that_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(groups) = groups(dir.path()) else {
        return;
    };
    let group = groups.make("a", &LIMITS).unwrap();
    let log = dir.path().join("log");
    let mut command = Command::new("sh");
    // A helper that leaves the session, as one would that is to outlive its VMM.
    command.args([
        "-c",
        "setsid sleep 600 & cat /proc/self/cgroup; exec sleep 600",
    ]);
    let id = spawn_detached(&mut command, &log, &group).unwrap();
    let member = groups.trees.iter().filter(|tree| {
        let own = membership(id.pid);
        let path = hierarchy::own_path(&own, tree.version, tree.controllers[0]);
        path.ends_with("/vm.a")
    });
    assert_eq!(member.count(), groups.trees.len(), "{}", membership(id.pid));
    assert_eq!(groups.known(), ["a"]);
    // Again, as after a restart of the agent: the same group.
    let again = Cgroups::open("test", dir.path()).unwrap();
    assert_eq!(again.known(), ["a"]);
    again.make("a", &LIMITS).unwrap();
    group.remove().unwrap();
    group.remove().unwrap();
    assert!(groups.known().is_empty());
    gone(id).await;
    groups.leave();
}

/// Version 2 is mounted beside version 1 on many hosts, without controllers.
#[tokio::test]
async fn a_group_of_version_two_tells_when_it_is_empty() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let Some(at) = mount.and_then(|line| line.split(' ').nth(4)) else {
        skip("there are no control groups of version 2");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let name = name_of("test", dir.path());
    let group = Group {
        dirs: vec![Path::new(at).join(name)],
    };
    if fs::create_dir(&group.dirs[0]).is_err() {
        skip("this process may make no control groups");
        return;
    }
    let events = Events::of(&group.dirs[0]).unwrap();
    assert!(!events.is_populated());
    let log = dir.path().join("log");
    let start = || {
        let mut command = Command::new("sh");
        let forks = "for n in $(seq 50); do setsid sleep 600 & done; echo up; wait";
        command.args(["-c", forks]);
        spawn_detached(&mut command, &log, &group).unwrap()
    };
    let id = start();
    while !fs::read_to_string(&log).unwrap().contains("up") {
        tokio::time::sleep(EMPTY_PAUSE).await;
    }
    assert!(events.is_populated());
    kill(&group.dirs[0]);
    while events.is_populated() {
        events.wait(EMPTY_LIMIT);
    }
    assert!(processes(&group.dirs[0]).is_empty());
    gone(id).await;
    // And the same by the way that agents go, while it still forks.
    let id = start();
    group.remove().unwrap();
    gone(id).await;
    assert!(!group.dirs[0].exists());
}

#[tokio::test]
async fn limits_hold() {
    let dir = tempfile::tempdir().unwrap();
    let Some(groups) = groups(dir.path()) else {
        return;
    };
    let group = groups.make("b", &LIMITS).unwrap();
    let log = dir.path().join("log");
    // It wants four times the memory that it may have.
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "head -c 268435456 /dev/zero | tail -c 268435456 | wc -c",
    ]);
    let id = spawn_detached(&mut command, &log, &group).unwrap();
    if let Some(process) = Process::find(id).unwrap() {
        process.ended().await;
    }
    let said = fs::read_to_string(&log).unwrap();
    assert!(!said.contains("268435456"), "memory is not limited: {said}");
    // And more processes than it may have.
    let roomy = Limits {
        memory_mib: 1024,
        ..LIMITS
    };
    groups.make("b", &roomy).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "for n in $(seq 600); do sleep 600 & done; wait"]);
    let id = spawn_detached(&mut command, &log, &group).unwrap();
    let refused = async {
        while !fs::read_to_string(&log)
            .unwrap()
            .to_lowercase()
            .contains("fork")
        {
            tokio::time::sleep(EMPTY_PAUSE).await;
        }
    };
    tokio::time::timeout(EMPTY_LIMIT * 3, refused)
        .await
        .expect("the 600th process runs");
    let count: usize = group
        .dirs
        .iter()
        .map(|dir| processes(dir).len())
        .max()
        .unwrap();
    assert!(count <= 512, "{count} processes");
    group.remove().unwrap();
    gone(id).await;
    groups.leave();
}

#[tokio::test]
async fn a_process_that_was_outside_is_taken_in_with_its_helpers() {
    let dir = tempfile::tempdir().unwrap();
    let Some(groups) = groups(dir.path()) else {
        return;
    };
    let log = dir.path().join("log");
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 600 & echo up; wait"]);
    let id = spawn_detached(&mut command, &log, &Group::default()).unwrap();
    while !fs::read_to_string(&log).unwrap().contains("up") {
        tokio::time::sleep(EMPTY_PAUSE).await;
    }
    let session = of_session(id.pid);
    assert_eq!(session.len(), 2);
    let group = groups.make("c", &LIMITS).unwrap();
    assert!(!group.holds(id.pid));
    group.adopt(&session).unwrap();
    assert!(group.holds(id.pid));
    for pid in session {
        assert!(membership(pid).contains("/vm.c"));
    }
    group.remove().unwrap();
    groups.leave();
}

#[test]
fn agents_of_other_directories_have_other_groups() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let name = |dir: &tempfile::TempDir| name_of("fc-agent", dir.path());
    assert_eq!(name(&one), name_of("fc-agent", &one.path().join(".")));
    assert_ne!(name(&one), name(&other));
    assert!(name(&one).starts_with("fc-agent-"));
}
