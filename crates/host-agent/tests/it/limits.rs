//! Limits of a VMM, as the kernel counts them: on this machine, in whichever version it has control
//! groups, and in a guest, whose kernel is ours and has version 2 alone with all controllers.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fuse_host_agent::cgroup::{Cgroups, Controller, Group, IoLimits, Limits};
use fuse_host_agent::tools;
use fuse_host_agent::vmm::process::{Process, ProcessId, spawn_detached};
use fuse_wire_host::{CreateVmRequest, ExecRequest, FileUpload, UploadRequest};

use crate::agent::{Agent, FC};
use crate::machine::{on_a_machine, run};

/// The longest that anything here may take, on machines that emulate and are busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause between two looks at a counter; the kernel has no event for those.
const LOOK: Duration = Duration::from_millis(20);
const LIMITS: Limits = Limits {
    cpus: 1,
    memory_mib: 256,
    io: IoLimits {
        bytes: 0,
        operations: 0,
    },
};
/// What the writers of the test write, in bytes.
const WRITTEN: u64 = 8 << 20;
/// Where the guest keeps what is on its disk itself, not on a file system above it.
const ON_DISK: &str = "/var/lib/containers/limits";

/// One process in a group of its own.
struct Member {
    process: Process,
    log: PathBuf,
    group: Group,
    /// The files of its group, one directory for each tree.
    dirs: Vec<PathBuf>,
}

impl Member {
    fn start(groups: &Cgroups, name: &str, limits: &Limits, state: &Path, script: &str) -> Self {
        let group = groups.make(name, limits).unwrap();
        let log = state.join(format!("{name}.log"));
        // It waits until its group is known.
        let go = state.join(format!("{name}.go"));
        assert!(
            Command::new("mkfifo").arg(&go).status().unwrap().success(),
            "no fifo"
        );
        let script = format!("read go <{}; {script}", go.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let id = spawn_detached(&mut command, &log, &group).unwrap();
        let dirs = directories(id);
        fs::write(&go, "\n").unwrap();
        fs::remove_file(&go).unwrap();
        let process = Process::find(id).unwrap().expect("it waits");
        Self {
            process,
            log,
            group,
            dirs,
        }
    }

    /// The content of a file of its group, in whichever tree it is.
    fn file(&self, name: &str) -> Option<String> {
        let files = self.dirs.iter().map(|dir| dir.join(name));
        files
            .filter_map(|file| fs::read_to_string(file).ok())
            .next()
    }

    /// The number that a line of such a file has after `key`.
    fn count(&self, file: &str, key: &str) -> u64 {
        let text = self.file(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(0)
    }

    /// Waits until a file of its group says so.
    async fn until(&self, file: &str, says: impl Fn(&Self) -> bool) {
        let said = async {
            while !says(self) {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(PATIENCE, said).await.is_err() {
            panic!("{file}: {:?}", self.file(file));
        }
    }

    async fn counts(&self, file: &str, key: &str) {
        self.until(file, |member| member.count(file, key) > 0).await;
    }

    async fn ended(&self) {
        if tokio::time::timeout(PATIENCE, self.process.ended())
            .await
            .is_err()
        {
            panic!("it runs on: {}", self.said());
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Bytes that the group has written to disks.
    fn written(&self) -> u64 {
        let one = self.file("blkio.throttle.io_service_bytes");
        let (text, key) = match &one {
            Some(text) => (text.clone(), "Write "),
            None => (self.file("io.stat").unwrap_or_default(), "wbytes="),
        };
        let words = text.split(key).skip(1);
        let numbers = words.filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        numbers.max().unwrap_or(0)
    }
}

/// The directories of a process's groups, as this process sees them.
fn directories(id: ProcessId) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let roots: Vec<&str> = mounts
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .filter_map(|line| line.split(' ').nth(4))
        .collect();
    let own = fs::read_to_string(format!("/proc/{}/cgroup", id.pid)).unwrap();
    let paths: Vec<&str> = own
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .filter(|path| path.contains("/vm."))
        .collect();
    let joined = roots.iter().flat_map(|root| {
        let inside = |path: &&str| Path::new(root).join(path.trim_start_matches('/'));
        paths.iter().map(inside)
    });
    let mut found: Vec<_> = joined.filter(|dir| dir.is_dir()).collect();
    found.sort();
    found.dedup();
    found
}

/// A machine that wants more memory than it may have is ended, all of it.
async fn memory(groups: &Cgroups, state: &Path) {
    let script = "sleep 600 & head -c 536870912 /dev/zero | tail -c 536870912 | wc -c; sleep 600";
    let greedy = Member::start(groups, "memory", &LIMITS, state, script);
    greedy.ended().await;
    assert!(greedy.count("memory.events", "oom_kill") > 0);
    assert!(!greedy.said().contains("536870912"), "{}", greedy.said());
    let nobody = |member: &Member| member.file("cgroup.procs").as_deref() == Some("");
    greedy.until("cgroup.procs", nobody).await;
    greedy.group.remove().unwrap();
}

async fn processes(groups: &Cgroups, state: &Path) {
    let script = "for n in $(seq 600); do sleep 600 & done; wait";
    let bomb = Member::start(groups, "pids", &LIMITS, state, script);
    bomb.counts("pids.events", "max").await;
    assert!(bomb.count("pids.peak", "") <= 512);
    // Whatever it has become goes with its group.
    bomb.group.remove().unwrap();
    bomb.ended().await;
}

/// Four CPUs' worth of work of a VM with one is held to two.
async fn cpu(groups: &Cgroups, state: &Path) {
    let script = "for n in 1 2 3; do (while :; do :; done) & done; while :; do :; done";
    let busy = Member::start(groups, "cpu", &LIMITS, state, script);
    busy.counts("cpu.stat", "nr_throttled").await;
    busy.group.remove().unwrap();
    busy.ended().await;
}

/// A limited writer is behind one that is not, however fast the disk is, and catches up when its limit
/// is taken away.
async fn disk(groups: &Cgroups, state: &Path) {
    let write = |name: &str| {
        format!(
            "dd if=/dev/zero of={}/{name}.data bs=64k count={} oflag=direct",
            state.display(),
            WRITTEN / (64 << 10)
        )
    };
    let slow = Limits {
        io: IoLimits {
            bytes: 256 << 10,
            operations: 0,
        },
        ..LIMITS
    };
    let held = Member::start(groups, "held", &slow, state, &write("held"));
    let free = Member::start(groups, "free", &LIMITS, state, &write("free"));
    free.ended().await;
    let (behind, done) = (held.written(), free.written());
    assert!(done >= WRITTEN, "{done}: {}", free.said());
    assert!(behind < WRITTEN, "{behind} of a writer that is held");
    // As an agent does that is started with other settings.
    groups.make("held", &LIMITS).unwrap();
    held.ended().await;
    assert!(held.written() >= WRITTEN, "{}", held.said());
    for member in [held, free] {
        member.group.remove().unwrap();
    }
}

fn skip(reason: &str) {
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "SKIP host-agent::limits: {reason}").unwrap();
}

#[tokio::test]
async fn a_limited_writer_is_held_on_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let groups = Cgroups::open("test", dir.path()).unwrap();
    if !groups.limits_disks() {
        skip("this machine cannot limit the disk of its temporary directory");
        return;
    }
    disk(&groups, dir.path()).await;
    groups.leave();
}

#[test]
fn every_limit_of_version_two_holds_in_a_guest() {
    on_a_machine("limits", |image, _outside| async move {
        let Some(strip) = tools::find("strip") else {
            skip("strip is not installed, and this program as it is too large for a guest");
            return;
        };
        let agent = Agent::start(FC, &image, &[]).await;
        let request = CreateVmRequest {
            name: Some("a".into()),
            cpus: Some(4),
            memory_mb: Some(1024),
            storage_gb: Some(2),
            ..CreateVmRequest::default()
        };
        if let Err(error) = agent.client.create(&request).await {
            panic!("{error}\n{}", agent.log());
        }
        let (program, own) = (agent.dir().join("it"), std::env::current_exe().unwrap());
        run(&[
            strip.to_str().unwrap(),
            "-o",
            program.to_str().unwrap(),
            own.to_str().unwrap(),
        ]);
        let file = FileUpload {
            path: "/root/it".into(),
            content: fs::read(program).unwrap(),
            mode: Some("0755".into()),
        };
        let upload = UploadRequest { files: vec![file] };
        agent.client.upload("a", &upload).await.unwrap();
        let script = "grep -q ' /sys/fs/cgroup cgroup2 ' /proc/mounts || mount -t cgroup2 none /sys/fs/cgroup
            exec /root/it --exact limits::in_a_guest --ignored --nocapture --test-threads 1 2>&1";
        let request = ExecRequest {
            cmd: ["sh", "-c", script].map(str::to_owned).to_vec(),
            timeout_ms: Some(400_000),
            ..ExecRequest::default()
        };
        let done = agent.client.exec("a", &request).await.unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert_eq!(done.exit_code, 0, "{said}");
        assert!(said.contains("1 passed"), "{said}");
        agent.client.delete("a").await.unwrap();
    });
}

#[tokio::test]
#[ignore = "is run in the guest of another test"]
async fn in_a_guest() {
    // What the service manager does for a unit with `Delegate=yes`.
    let unit = Path::new("/sys/fs/cgroup/unit");
    fs::create_dir(unit).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(unit, "user.delegate", b"1", flags).unwrap();
    fs::write(unit.join("cgroup.procs"), "0").unwrap();
    let state = Path::new(ON_DISK);
    fs::create_dir_all(state).unwrap();

    let groups = Cgroups::open("test", state).unwrap();
    let missing: Vec<Controller> = groups.missing().collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(groups.limits_disks());
    // A group with groups in it may hold no processes: the agent has moved into one of its own.
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    assert_eq!(own, "0::/unit/agent\n");
    memory(&groups, state).await;
    processes(&groups, state).await;
    cpu(&groups, state).await;
    disk(&groups, state).await;
    assert!(groups.known().is_empty());
    groups.leave();
    assert!(!unit.join("fuse").exists());
}
