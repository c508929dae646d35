//! The driver against a scripted API socket: order and content of the calls, and its failures.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

use super::*;
use crate::cgroup::Group;
use crate::net::plan::MacAddr;
use crate::vmm::{BootSource, Nic};

fn spec(dir: &Path) -> MachineSpec {
    MachineSpec {
        vm_id: "vm-1".into(),
        cpus: 2,
        memory_mib: 512,
        boot: BootSource {
            kernel: "/k".into(),
            initrd: "/i".into(),
            cmdline: "console=ttyS0 fuse.vm=vm-1".into(),
        },
        base: "/base".into(),
        overlay: "/overlay".into(),
        nic: Some(Nic {
            tap: "fcv1".into(),
            mac: MacAddr([6, 0, 0xac, 0x10, 1, 2]),
        }),
        log: dir.join("fc.log"),
        huge_pages: false,
        devices: Vec::new(),
        number: 7,
        sockets: sockets::of(dir, "vm-1"),
        group: Group::default(),
    }
}

/// Answers every call with 204 until `refuse` is asked for, and lists what was asked.
async fn serve(listener: UnixListener, refuse: &str) -> Vec<(String, serde_json::Value)> {
    let mut seen = Vec::new();
    loop {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        let body = loop {
            let mut buffer = [0; 4096];
            let n = socket.read(&mut buffer).await.unwrap();
            if n == 0 {
                break None;
            }
            request.extend_from_slice(&buffer[..n]);
            let text = String::from_utf8_lossy(&request);
            let whole = text
                .split_once("\r\n\r\n")
                .and_then(|(_, b)| serde_json::from_str(b).ok());
            if whole.is_some() {
                break whole;
            }
        };
        // A look whether the socket is open sends nothing.
        let Some(body) = body else { continue };
        let text = String::from_utf8_lossy(&request);
        let path = text.split(' ').nth(1).unwrap().to_owned();
        let fault = r#"{"fault_message":"no such file"}"#;
        let last = path == refuse || path == "/actions";
        let answer = if path == refuse {
            format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n{fault}",
                fault.len()
            )
        } else {
            "HTTP/1.1 204 No Content\r\n\r\n".to_owned()
        };
        socket.write_all(answer.as_bytes()).await.unwrap();
        seen.push((path, body));
        if last {
            return seen;
        }
    }
}

/// A program that stays: its arguments are those of Firecracker.
fn program(dir: &Path, script: &str) -> Firecracker {
    let path = dir.join("vmm");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Firecracker::new(path, dir.to_owned(), Duration::from_secs(9))
}

#[tokio::test]
async fn a_cold_boot_makes_the_documented_calls() {
    let dir = tempfile::tempdir().unwrap();
    let driver = program(dir.path(), "sleep 600");
    let spec = spec(dir.path());
    let listener = UnixListener::bind(&spec.sockets.api).unwrap();
    let mut server = JoinSet::new();
    server.spawn(serve(listener, ""));
    let process = Process::find(driver.spawn(&spec).unwrap())
        .unwrap()
        .unwrap();
    driver.open(&spec, &process).await.unwrap();
    driver.configure(&spec, &process).await.unwrap();
    driver.boot(&spec).await.unwrap();
    let seen = server.join_next().await.unwrap().unwrap();
    let paths: Vec<_> = seen.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/boot-source",
            "/drives/rootfs",
            "/drives/overlay",
            "/network-interfaces/eth0",
            "/vsock",
            "/machine-config",
            "/actions"
        ]
    );
    assert_eq!(seen[0].1["initrd_path"], "/i");
    assert_eq!(seen[1].1["is_read_only"], true);
    assert_eq!(seen[3].1["guest_mac"], "06:00:AC:10:01:02");
    assert_eq!(seen[5].1["track_dirty_pages"], true);
    process.kill().await.unwrap();
}

#[tokio::test]
async fn a_refusal_carries_the_fault() {
    let dir = tempfile::tempdir().unwrap();
    let driver = program(dir.path(), "sleep 600");
    let spec = spec(dir.path());
    let listener = UnixListener::bind(&spec.sockets.api).unwrap();
    let mut server = JoinSet::new();
    server.spawn(serve(listener, "/drives/rootfs"));
    let process = Process::find(driver.spawn(&spec).unwrap())
        .unwrap()
        .unwrap();
    let error = driver.configure(&spec, &process).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the VMM refused /drives/rootfs with status 400: no such file"
    );
    process.kill().await.unwrap();
}

#[tokio::test]
async fn a_program_that_ends_shows_its_last_words() {
    let dir = tempfile::tempdir().unwrap();
    // It ends when told to, so that the test does not race with its end.
    let fifo = dir.path().join("go");
    let driver = program(
        dir.path(),
        &format!("echo no kvm here; read x < {}", fifo.display()),
    );
    let spec = spec(dir.path());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let process = Process::find(driver.spawn(&spec).unwrap())
        .unwrap()
        .unwrap();
    let end = async {
        let go = fifo.clone();
        tokio::task::spawn_blocking(move || std::fs::write(go, "x\n"))
            .await
            .unwrap()
            .unwrap();
    };
    let (result, ()) = tokio::join!(driver.open(&spec, &process), end);
    let error = result.unwrap_err().to_string();
    assert_eq!(
        error,
        "the VMM ended during its set-up; its last words: no kvm here"
    );
}

#[test]
fn a_missing_program_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let driver = Firecracker::new(
        "/nowhere/firecracker".into(),
        dir.path().to_owned(),
        Duration::from_secs(9),
    );
    let error = driver.spawn(&spec(dir.path())).unwrap_err();
    assert!(
        error.to_string().contains("/nowhere/firecracker"),
        "{error}"
    );
}

#[tokio::test]
async fn a_live_snapshot_makes_the_documented_calls() {
    let dir = tempfile::tempdir().unwrap();
    let driver = program(dir.path(), "sleep 600");
    let mut spec = spec(dir.path());
    spec.huge_pages = true;
    let store = crate::snapshot::Snapshots::open(dir.path().join("snapshots")).unwrap();
    let staged = store.stage().unwrap();
    let files = staged.files();
    let listener = UnixListener::bind(&spec.sockets.api).unwrap();
    let mut server = JoinSet::new();
    server.spawn(serve(listener, "/snapshot/load"));
    let process = Process::find(driver.spawn(&spec).unwrap())
        .unwrap()
        .unwrap();
    driver.configure(&spec, &process).await.unwrap();
    driver.pause(&spec.sockets).await.unwrap();
    driver.save(&spec.sockets, &files).await.unwrap();
    let within = Duration::from_secs(9);
    driver.resume(&spec.sockets, within).await.unwrap();
    let refused = driver.load(&spec, &process, &files).await.unwrap_err();
    assert!(refused.to_string().contains("/snapshot/load"), "{refused}");
    process.kill().await.unwrap();
    let seen = server.join_next().await.unwrap().unwrap();
    let machine = seen.iter().find(|(path, _)| path == "/machine-config");
    assert_eq!(machine.unwrap().1["huge_pages"], "2M");
    let calls = &seen[seen.len() - 4..];
    let (state, memory) = (files.vmstate(), files.memory());
    let want = [
        ("/vm", json!({"state": "Paused"})),
        (
            "/snapshot/create",
            json!({"snapshot_type": "Full", "snapshot_path": state, "mem_file_path": memory}),
        ),
        ("/vm", json!({"state": "Resumed"})),
        (
            "/snapshot/load",
            json!({
                "snapshot_path": state,
                "mem_backend": {"backend_type": "File", "backend_path": memory},
                "resume_vm": true,
            }),
        ),
    ];
    let want = want.map(|(path, body)| (path.to_owned(), body));
    assert_eq!(calls, want);
}

/// A stand-in for the jailer: it has the arguments of the real one, writes them down, and runs
/// something as the user that it is told. It changes no root, for what it runs needs this one.
fn stand_in(dir: &Path) -> Jailer {
    let path = dir.join("jailer");
    let script = "#!/bin/sh\necho \"$@\" >&2\nwhile [ $# -gt 0 ]; do case $1 in\n\
        --uid) uid=$2;; --gid) gid=$2;; --) break;; esac; shift; done\n\
        exec setpriv --reuid $uid --regid $gid --clear-groups sleep 600\n";
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Jailer {
        program: path,
        dir: dir.join("jail"),
        first_uid: 50_000,
    }
}

#[test]
fn a_jailed_vmm_has_these_arguments() {
    let jailer = Jailer {
        program: "/opt/jailer".into(),
        dir: "/srv/jail".into(),
        first_uid: 900_000,
    };
    let vmm = Path::new("/opt/firecracker-v1");
    let jail = jailer.jail(vmm, "vm-1", 7);
    let words = jailer.arguments(&jail, vmm);
    let line: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
    assert_eq!(
        line.join(" "),
        "--id vm-1 --exec-file /opt/firecracker-v1 --uid 900007 --gid 900007 \
         --chroot-base-dir /srv/jail -- --api-sock /run/api.sock"
    );
    let sockets = jailer.sockets(vmm, "vm-1");
    let root = "/srv/jail/firecracker-v1/vm-1/root";
    assert_eq!(sockets.api, Path::new(root).join("run/api.sock"));
    assert_eq!(sockets.channel, Path::new(root).join("run/v.sock"));
    // Ids of more than 64 characters are none for it.
    let long = jailer.jail(vmm, &"x".repeat(90), 1);
    let id = jailer.arguments(&long, vmm)[1].clone();
    assert!(id.len() <= 64, "{id:?}");
}

#[tokio::test]
async fn a_jailed_vmm_is_lent_what_it_needs_and_no_more() {
    if !nix::unistd::geteuid().is_root() || crate::tools::find("setpriv").is_none() {
        return crate::testing::skip("needs root and setpriv");
    }
    let dir = tempfile::tempdir().unwrap();
    let jailer = stand_in(dir.path());
    let driver = Firecracker::new(
        "/opt/firecracker".into(),
        dir.path().to_owned(),
        Duration::from_secs(9),
    );
    let driver = driver.jailed(jailer);
    let file = |name: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, name).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let spec = MachineSpec {
        boot: BootSource {
            kernel: file("k"),
            initrd: file("i"),
            cmdline: "console=ttyS0".into(),
        },
        base: file("b"),
        overlay: file("o"),
        sockets: driver.sockets("vm-1", dir.path()),
        ..spec(dir.path())
    };
    let process = Process::find(driver.spawn(&spec).unwrap())
        .unwrap()
        .unwrap();
    let root = driver.home("vm-1").unwrap().join("root");
    // What the VMM does, which the stand-in runs none of.
    let listener = UnixListener::bind(root.join("run/api.sock")).unwrap();
    let _channel = UnixListener::bind(root.join("run/v.sock")).unwrap();
    let mut server = JoinSet::new();
    server.spawn(serve(listener, ""));
    driver.open(&spec, &process).await.unwrap();
    driver.configure(&spec, &process).await.unwrap();
    driver.boot(&spec).await.unwrap();
    let seen = server.join_next().await.unwrap().unwrap();
    let said: Vec<_> = [
        (0, "kernel_image_path"),
        (0, "initrd_path"),
        (1, "path_on_host"),
        (2, "path_on_host"),
        (4, "uds_path"),
    ]
    .map(|(call, field)| seen[call].1[field].as_str().unwrap().to_owned())
    .into();
    assert_eq!(
        said,
        ["/kernel", "/initrd", "/base", "/overlay", "/run/v.sock"]
    );
    let status = || std::fs::read_to_string(format!("/proc/{}/status", process.id().pid)).unwrap();
    // The stand-in takes a moment until it has become what it runs.
    let dropped = async {
        while status().contains("Uid:\t0\t") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), dropped)
        .await
        .unwrap();
    let status = status();
    assert!(
        status.contains("Uid:\t50007\t50007\t50007\t50007"),
        "{status}"
    );
    let rights = |name: &str| {
        let meta = std::fs::metadata(root.join(name)).unwrap();
        (meta.uid(), meta.mode() & 0o777)
    };
    assert_eq!(rights("overlay"), (50_007, 0o600));
    for name in ["kernel", "initrd", "base"] {
        assert_eq!(rights(name), (0, 0o644), "{name}");
    }
    assert_eq!(rights("run"), (50_007, 0o700));
    assert_eq!(rights("run/api.sock").1, 0o600);
    process.kill().await.unwrap();
}

#[tokio::test]
async fn what_a_jailed_vmm_writes_is_moved_and_never_followed() {
    let dir = tempfile::tempdir().unwrap();
    let jailer = stand_in(dir.path());
    let jail = jailer.jail(Path::new("/opt/firecracker"), "vm-1", 0);
    let root = jailer
        .home(Path::new("/opt/firecracker"), "vm-1")
        .join("root");
    std::fs::create_dir_all(&root).unwrap();
    let (secret, taken) = (dir.path().join("secret"), dir.path().join("taken"));
    std::fs::write(&secret, "secret").unwrap();
    std::os::unix::fs::symlink(&secret, root.join("mem")).unwrap();
    assert!(jail.take("mem", &taken).is_err());
    std::fs::remove_file(root.join("mem")).unwrap();
    // A file of somebody else's, which a move would give away.
    std::fs::hard_link(&secret, root.join("mem")).unwrap();
    assert!(jail.take("mem", &taken).is_err());
    assert!(!taken.exists());
    assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
    if nix::unistd::geteuid().is_root() {
        std::fs::write(root.join("mem"), "memory").unwrap();
        jail.take("mem", &taken).unwrap();
        assert_eq!(std::fs::read(&taken).unwrap(), b"memory");
        assert!(!root.join("mem").exists());
    }
}
