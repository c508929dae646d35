//! Snapshots of real guests: nothing written is lost, nothing comes back wrong.

use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuse_wire_host::{
    ForkRequest, HostError, RestoreRequest, Snapshot, SnapshotKind, SnapshotRequest, VmState,
};

use crate::agent::{Agent, FC};
use crate::machine::on_a_machine;

/// Cycles of each kind; a soak run asks for more.
fn cycles() -> usize {
    let asked = std::env::var("FUSE_SNAPSHOT_CYCLES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(2)
}

async fn shell(agent: &Agent, vm: &str, script: &str) -> String {
    let done = agent.exec(vm, &["bash", "-c", script]).await;
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.exit_code, 0, "{script}: {stderr}\n{}", agent.log());
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

async fn take(agent: &Agent, vm: &str, live: bool) -> Snapshot {
    let request = SnapshotRequest {
        live: Some(live),
        ..SnapshotRequest::default()
    };
    match agent.client.snapshot(vm, &request).await {
        Ok(taken) => taken,
        Err(error) => panic!("{error}\n{}", agent.log()),
    }
}

async fn restore(agent: &Agent, vm: &str, snapshot: &Snapshot) {
    let request = RestoreRequest {
        snapshot_id: snapshot.snapshot_id.clone(),
    };
    match agent.client.restore(vm, &request).await {
        Ok(restored) => {
            assert_eq!(restored.kind, snapshot.kind);
            let synced = (snapshot.kind == SnapshotKind::Live).then_some(true);
            assert_eq!(restored.clock_synced, synced);
        }
        Err(error) => panic!("{error}\n{}", agent.log()),
    }
}

/// Names and contents of everything that the test has written.
const SUM: &str = "cd /srv && find . -type f | sort | xargs sha256sum | sha256sum";

/// Writes without any sync, takes a snapshot, ruins everything, kills the agent, goes back.
pub(crate) async fn cycle(agent: &mut Agent, number: usize, live: bool) {
    let write = format!(
        "mkdir -p /srv/d{number} && head -c 1500000 /dev/urandom > /srv/d{number}/new \
         && head -c 70000 /dev/urandom >> /srv/log && : > /srv/empty{number}"
    );
    shell(agent, "a", &write).await;
    let before = shell(agent, "a", SUM).await;
    let taken = take(agent, "a", live).await;
    let ruin = "head -c 3000000 /dev/urandom > /srv/log; rm -rf /srv/d*; touch /srv/late; sync";
    shell(agent, "a", ruin).await;
    agent.kill();
    agent.launch().await;
    assert_ne!(shell(agent, "a", SUM).await, before);
    restore(agent, "a", &taken).await;
    assert_eq!(
        shell(agent, "a", SUM).await,
        before,
        "cycle {number}, live {live}"
    );
    let broken = "dmesg | grep -Ei 'ext4-fs.*(error|corrupt)|i/o error' || true";
    assert_eq!(shell(agent, "a", broken).await, "");
}

#[test]
fn what_a_guest_wrote_comes_back_from_disk_and_live_snapshots() {
    on_a_machine("snapshots", |image, _outside| async move {
        let mut agent = Agent::start(FC, &image, &[]).await;
        agent.create("a").await;
        cost(&agent).await;
        for number in 0..cycles() {
            cycle(&mut agent, number, false).await;
        }
        for number in 0..cycles() {
            cycle(&mut agent, 100 + number, true).await;
        }
        killed_midway(&mut agent).await;
        goes_on(&mut agent).await;
        forks(&agent).await;
        removal(&agent).await;
        assert_eq!(agent.leftovers(), Vec::<String>::new());
    });
}

/// A snapshot costs what the guest has written, not what its disk could hold.
async fn cost(agent: &Agent) {
    let write = "head -c 50000000 /dev/urandom > /srv/fifty";
    shell(agent, "a", write).await;
    let taken = take(agent, "a", false).await;
    let (copied, size) = (taken.copied_bytes.unwrap(), taken.size_bytes);
    assert!((50_000_000..60_000_000).contains(&size), "{taken:?}");
    assert!(
        copied == 0 || (50_000_000..60_000_000).contains(&copied),
        "{taken:?}"
    );
    let live = take(agent, "a", true).await;
    let mut stderr = std::io::stderr().lock();
    writeln!(
        stderr,
        "snapshots: guest wrote 50 MB: {copied} bytes copied, {size} stored; live: {} stored, paused {:?} ms",
        live.size_bytes, live.pause_ms
    )
    .unwrap();
    assert_eq!(live.kind, SnapshotKind::Live);
    shell(agent, "a", "rm /srv/fifty").await;
    assert!(live.pause_ms.unwrap() > 0.0);
}

/// An agent that is killed while it takes a snapshot leaves a guest that goes on, and nothing else.
async fn killed_midway(agent: &mut Agent) {
    let store = agent.dir().join("agent-state/snapshots");
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(&store).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.collect()
    };
    for live in [true, false] {
        let before = names().len();
        let request = SnapshotRequest {
            live: Some(live),
            ..SnapshotRequest::default()
        };
        let begun = async {
            while !names().iter().any(|name| name.starts_with(".new-")) {
                tokio::task::yield_now().await;
            }
        };
        let client = agent.client.clone();
        tokio::select! {
            taken = client.snapshot("a", &request) => panic!("{taken:?}"),
            () = begun => {}
        }
        agent.kill();
        agent.launch().await;
        shell(agent, "a", "echo on > /srv/on && sync && rm /srv/on").await;
        assert_eq!(names().len(), before);
        assert!(!names().iter().any(|name| name.starts_with('.')));
        take(agent, "a", live).await;
    }
}

/// Processes, open files and what is only in memory go on where they were; the clock does not.
pub(crate) async fn goes_on(agent: &mut Agent) {
    let start = "exec 7>/srv/open; echo memory > /run/kept; \
                 setsid bash -c 'i=0; while :; do i=$((i+1)); echo $i > /run/count; \
                 echo $i >&7; sleep 0.1; done' >/dev/null 2>&1 < /dev/null & echo $!";
    let pid = shell(agent, "a", start).await;
    shell(agent, "a", "until [ -s /run/count ]; do sleep 0.1; done").await;
    let boot = agent.client.get("a").await.unwrap().boot_id;
    let taken = take(agent, "a", true).await;
    let count: u64 = shell(agent, "a", "cat /run/count").await.parse().unwrap();
    shell(
        agent,
        "a",
        &format!("kill {pid}; rm /run/kept /srv/open; date -s @1000000000"),
    )
    .await;
    agent.kill();
    agent.launch().await;
    restore(agent, "a", &taken).await;
    assert_eq!(agent.client.get("a").await.unwrap().boot_id, boot);
    assert_eq!(shell(agent, "a", "cat /run/kept").await, "memory");
    let clock: u64 = shell(agent, "a", "date +%s").await.parse().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    assert!(now.as_secs().abs_diff(clock) < 10, "{clock} is not {now:?}");
    let grows = "first=$(cat /run/count); \
                 until now=$(cat /run/count) && [ \"${now:-0}\" -gt \"${first:-0}\" ]; do sleep 0.1; done; \
                 echo $now";
    let again: u64 = shell(agent, "a", grows).await.parse().unwrap();
    assert!(again > 0 && again < count + 300, "{again} after {count}");
    let open = format!("test -e /proc/{pid} && tail -n1 /srv/open");
    assert!(shell(agent, "a", &open).await.parse::<u64>().unwrap() >= again);
    shell(agent, "a", &format!("kill {pid}; rm /srv/open")).await;
}

/// A fork is somebody else with the same files.
pub(crate) async fn forks(agent: &Agent) {
    let taken = take(agent, "a", false).await;
    let request = ForkRequest {
        snapshot_id: taken.snapshot_id.clone(),
        name: Some("fork".into()),
        storage_gb: Some(2),
        ..ForkRequest::default()
    };
    shell(agent, "a", "echo secret > /fuse/auth-token").await;
    let forked = match agent.client.fork("a", &request).await {
        Ok(forked) => forked,
        Err(error) => panic!("{error}\n{}", agent.log()),
    };
    assert_eq!(
        (forked.state, forked.owner.as_deref()),
        (Some(VmState::Running), Some("fleet-1"))
    );
    assert_eq!(
        shell(agent, "fork", SUM).await,
        shell(agent, "a", SUM).await
    );
    for (script, what) in [
        ("cat /etc/machine-id", "machine id"),
        ("cat /etc/hostname; uname -n", "host name"),
        (
            "ip -4 -o addr show eth0 || cat /proc/net/fib_trie",
            "address",
        ),
        ("head -c 16 /dev/urandom | sha256sum", "randomness"),
    ] {
        let (source, fork) = (
            shell(agent, "a", script).await,
            shell(agent, "fork", script).await,
        );
        assert_ne!(source, fork, "{what}");
    }
    assert_eq!(shell(agent, "fork", "ls -A /fuse").await, "");
    assert_eq!(shell(agent, "a", "cat /fuse/auth-token").await, "secret");
    let size = shell(agent, "fork", "df -k --output=size / | tail -1").await;
    assert!(
        size.trim().parse::<u64>().unwrap() > 1_800_000,
        "the disk has grown: {size} KiB"
    );
    agent.client.delete("fork").await.unwrap();
}

async fn removal(agent: &Agent) {
    let all = agent.client.snapshots("a").await.unwrap();
    assert!(all.len() > 2 * cycles());
    agent.client.delete("a").await.unwrap();
    for snapshot in &all {
        let id = &snapshot.snapshot_id;
        agent.client.delete_snapshot(id).await.unwrap();
        let again = agent.client.delete_snapshot(id).await.unwrap_err();
        assert!(matches!(again, HostError::NotFound { .. }), "{again:?}");
    }
    let store = agent.dir().join("agent-state/snapshots");
    assert_eq!(std::fs::read_dir(store).unwrap().count(), 0);
    tokio::time::timeout(Duration::from_secs(1), agent.client.health())
        .await
        .unwrap()
        .unwrap();
}
