//! What the API says before a VM runs, and the command line. No QEMU needed.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::emulator::{Emulator, program};
use crate::http;

fn drive(id: &str, path: &Path, root: bool) -> Value {
    json!({"drive_id": id, "path_on_host": path, "is_root_device": root, "is_read_only": true})
}

#[test]
fn a_fresh_instance_describes_itself() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(dir.path());
    let answer = emulator.call("GET", "/", "");
    assert!(
        answer.head.contains("Server: Firecracker API")
            || answer.head.contains("server: Firecracker API")
    );
    let info = answer.json();
    assert_eq!(
        (&info["id"], &info["state"]),
        (&json!("test-1"), &json!("Not started"))
    );
    assert_eq!(info["app_name"], "Firecracker");
    let version = &emulator.get("/version")["firecracker_version"];
    assert_eq!(*version, info["vmm_version"]);
    assert!(
        version.as_str().unwrap().contains("fc-emulator"),
        "{version}"
    );
    assert_eq!(
        emulator.get("/machine-config"),
        json!({
            "vcpu_count": 1, "mem_size_mib": 128, "smt": false, "track_dirty_pages": false,
            "huge_pages": "None",
        })
    );
}

#[test]
fn actions_of_a_running_vm_are_refused_before_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(dir.path());
    let early = "The requested operation is not supported before starting the microVM.";
    for (method, path, body) in [
        ("PATCH", "/vm", json!({"state": "Paused"})),
        ("PATCH", "/vm", json!({"state": "Resumed"})),
        ("PUT", "/actions", json!({"action_type": "SendCtrlAltDel"})),
        ("PUT", "/actions", json!({"action_type": "FlushMetrics"})),
        (
            "PUT",
            "/snapshot/create",
            json!({"snapshot_path": "s", "mem_file_path": "m"}),
        ),
        ("PATCH", "/drives/a", json!({"drive_id": "a"})),
        ("PATCH", "/network-interfaces/a", json!({"iface_id": "a"})),
    ] {
        assert_eq!(
            emulator.refused(method, path, body),
            early,
            "{method} {path}"
        );
    }
    let start = json!({"action_type": "InstanceStart"});
    assert_eq!(
        emulator.refused("PUT", "/actions", start),
        "Start microvm error: Cannot start microvm without kernel configuration."
    );
}

#[test]
fn what_does_not_exist_is_refused_where_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(dir.path());
    let gone = dir.path().join("gone");
    let here = dir.path().join("fc.log");
    for (path, body, begins) in [
        (
            "/boot-source",
            json!({"kernel_image_path": gone}),
            "Boot source error: The kernel file cannot be opened",
        ),
        (
            "/boot-source",
            json!({"kernel_image_path": here, "initrd_path": gone}),
            "Boot source error: The initrd file cannot be opened",
        ),
        (
            "/drives/a",
            drive("a", &gone, false),
            "Drive config error: Unable to open the backing file",
        ),
        (
            "/vsock",
            json!({"guest_cid": 3, "uds_path": here}),
            "Vsock config error: Cannot bind the Unix socket",
        ),
    ] {
        let fault = emulator.refused("PUT", path, body);
        assert!(fault.starts_with(begins), "{fault}");
        assert!(fault.contains(" (os error "), "the cause is told: {fault}");
    }
}

#[test]
fn bad_values_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(dir.path());
    let before = emulator.get("/vm/config");
    for (path, body, fault) in [
        (
            "/machine-config",
            json!({"vcpu_count": 33, "mem_size_mib": 128}),
            "Machine config error: The vCPU number is invalid! The vCPU number can only be 1 or an \
             even number when SMT is enabled, and at most 32.",
        ),
        (
            "/machine-config",
            json!({"vcpu_count": 1, "mem_size_mib": 0}),
            "Machine config error: The memory size (MiB) is invalid.",
        ),
        (
            "/vsock",
            json!({"guest_cid": 2, "uds_path": "u"}),
            "Vsock config error: guest_cid must be 3 or greater, not 2",
        ),
        (
            "/drives/a",
            json!({"drive_id": "a", "is_root_device": false, "is_read_only": true}),
            "Drive config error: Drive a needs both path_on_host and is_read_only",
        ),
        (
            "/drives/a",
            json!({"drive_id": "a", "is_root_device": false, "socket": "s"}),
            "Drive config error: vhost-user drives are not available in fc-emulator; give \
             path_on_host, not socket",
        ),
        (
            "/network-interfaces/a",
            json!({"iface_id": "a", "host_dev_name": "a-name-of-16-chr"}),
            "Network config error: Open tap device a-name-of-16-chr failed: interface names have \
             1 to 15 characters",
        ),
    ] {
        assert_eq!(emulator.refused("PUT", path, body), fault, "{path}");
    }
    assert_eq!(emulator.get("/vm/config"), before);
}

#[test]
fn there_is_one_root_device() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(dir.path());
    let file = dir.path().join("fc.log");
    emulator.set("PUT", "/drives/a", drive("a", &file, false));
    emulator.set("PUT", "/drives/b", drive("b", &file, true));
    assert_eq!(
        emulator.refused("PUT", "/drives/c", drive("c", &file, true)),
        "Drive config error: A root block device already exists!"
    );
    let drives = &emulator.get("/vm/config")["drives"];
    assert_eq!(
        (&drives[0]["drive_id"], &drives[1]["drive_id"]),
        (&json!("b"), &json!("a"))
    );
}

#[test]
fn a_snapshot_loads_only_into_an_untouched_process() {
    let dir = tempfile::tempdir().unwrap();
    let load = json!({
        "snapshot_path": dir.path().join("gone"),
        "mem_backend": {"backend_type": "File", "backend_path": "m"},
    });
    let mut emulator = Emulator::start(dir.path());
    // In vain, but touched.
    emulator.refused("PUT", "/vsock", json!({"guest_cid": 0, "uds_path": "u"}));
    assert_eq!(
        emulator.refused("PUT", "/snapshot/load", load.clone()),
        "Load snapshot error: Loading a microVM snapshot not allowed after configuring \
         boot-specific resources."
    );
    assert_eq!(emulator.get("/")["state"], "Not started");
    emulator.signal(rustix::process::Signal::TERM);
    emulator.ends_with(128 + 15);

    // A load that fails ends the process, after it has said why.
    let mut emulator = Emulator::start(dir.path());
    emulator.set("PUT", "/logger", json!({"level": "Info"}));
    let fault = emulator.refused("PUT", "/snapshot/load", load);
    assert!(
        fault.starts_with("Load snapshot error: Failed to restore from snapshot: "),
        "{fault}"
    );
    emulator.ends_with(1);
}

#[test]
fn requests_have_a_size_limit() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = Emulator::start_with(
        dir.path(),
        program().args(["--http-api-max-payload-size", "250"]),
    );
    let answer = emulator.call("PUT", "/boot-source", &"x".repeat(260));
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.json()["error"],
        "Request payload with size 260 is larger than the limit of 250 allowed by server.\n\
         All previous unanswered requests will be dropped."
    );
    // Not HTTP at all.
    let mut stream = UnixStream::connect(emulator.socket()).unwrap();
    stream.write_all(b"hello there\r\n\r\n").unwrap();
    assert_eq!(http::receive(stream).status, 400);
    assert_eq!(emulator.get("/")["state"], "Not started");
}

#[test]
fn a_missing_qemu_is_named_with_its_package() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = dir.path().join("fc.log");
    let emulator = Emulator::start_with(dir.path(), program().env("FC_EMULATOR_QEMU", "/no/qemu"));
    emulator.set("PUT", "/boot-source", json!({"kernel_image_path": kernel}));
    assert_eq!(
        emulator.refused("PUT", "/actions", json!({"action_type": "InstanceStart"})),
        "Start microvm error: Cannot start QEMU: /no/qemu was not found; install the Debian package \
         qemu-system-x86 or set FC_EMULATOR_QEMU to the path of QEMU"
    );
    // Nothing has started, so it can be tried again.
    assert_eq!(emulator.get("/")["state"], "Not started");
}

#[test]
fn the_log_goes_where_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("own.log");
    let emulator = Emulator::start(dir.path());
    let logger = json!({
        "log_path": log, "level": "debug", "show_level": true, "show_log_origin": true,
    });
    emulator.set("PUT", "/logger", logger);
    emulator.get("/");
    let text = std::fs::read_to_string(&log).unwrap();
    let line = text
        .lines()
        .find(|line| line.contains("API request"))
        .unwrap();
    assert!(line.contains("[test-1:INFO:"), "{line}");
    assert_eq!(emulator.get("/vm/config")["logger"]["level"], "Debug");
    let fault = emulator.refused("PUT", "/logger", json!({"log_path": dir.path()}));
    assert!(
        fault.starts_with("Logger error: Failed to open the log file"),
        "{fault}"
    );
}

#[test]
fn the_command_line_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| program().args(args).output().unwrap();
    let version = run(&["--version"]);
    assert!(version.status.success());
    assert!(
        String::from_utf8(version.stdout)
            .unwrap()
            .starts_with("Firecracker v")
    );
    assert_eq!(run(&["--frobnicate"]).status.code(), Some(153));
    assert_eq!(run(&["--id", "a_b"]).status.code(), Some(153));
    assert_eq!(run(&["--no-api"]).status.code(), Some(153));

    let taken = dir.path().join("taken");
    std::fs::write(&taken, "").unwrap();
    let socket = program().arg("--api-sock").arg(&taken).output().unwrap();
    assert_eq!(socket.status.code(), Some(1));
    let text = String::from_utf8(socket.stderr).unwrap();
    assert!(text.contains("Failed to open the API socket at"), "{text}");
    assert!(taken.exists(), "somebody else's file is left alone");
}

#[test]
fn configuration_files_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let run = |text: &str| {
        let file = dir.path().join("vm.json");
        std::fs::write(&file, text).unwrap();
        let mut command = program();
        command.args(["--no-api", "--config-file"]).arg(&file);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = run("{");
    assert!(text.contains("vm.json is not valid"), "{text}");
    let text = run(r#"{"boot-source":{"kernel_image_path":"/k"},"drives":[],"color":1}"#);
    assert!(text.contains("unknown field `color`"), "{text}");
    let text = run(r#"{"boot-source":{"kernel_image_path":"/k"},"drives":[],"balloon":{}}"#);
    assert!(
        text.contains("balloon, which fc-emulator does not have"),
        "{text}"
    );
    let text = run(r#"{"boot-source":{"kernel_image_path":"/no/kernel"},"drives":[]}"#);
    assert!(
        text.contains("The kernel file cannot be opened (/no/kernel)"),
        "{text}"
    );
}
