//! Real guests, from the image that hosts use.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use fuse_wire_guest::control::{ExecRequest, ExecResponse, Ready, Status, path};
use fuse_wire_guest::vsock::{connect_line, listener_path, parse_ok};
use fuse_wire_guest::{CONTROL_PORT, READY_PORT};
use serde_json::json;

use crate::emulator::{Emulator, program};
use crate::http::{self, Answer, LIMIT};
use crate::image::{Image, skip};

fn image(test: &str) -> Option<Image> {
    match Image::find() {
        Ok(image) => Some(image),
        Err(why) => {
            skip(test, &why);
            None
        }
    }
}

/// Dials a port of the guest; `None` if the connection is closed instead.
fn dial(dir: &Path, port: u32) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(dir.join("v.sock")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(connect_line(port).as_bytes()).unwrap();
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        if stream.read(&mut byte).unwrap() == 0 {
            assert_eq!(line, b"", "half a line");
            return None;
        }
        line.push(byte[0]);
    }
    parse_ok(std::str::from_utf8(&line).unwrap()).unwrap();
    Some(stream)
}

fn control(dir: &Path, method: &str, path: &str, body: &str) -> Answer {
    let stream = dial(dir, CONTROL_PORT).expect("the guest agent listens");
    http::call(stream, method, path, body)
}

fn status(dir: &Path) -> Status {
    control(dir, "GET", path::STATUS, "").typed()
}

fn shell(dir: &Path, script: &str) -> String {
    let request = ExecRequest {
        cmd: vec!["/bin/sh".into(), "-c".into(), script.into()],
        timeout_ms: 60_000,
        ..ExecRequest::default()
    };
    let body = serde_json::to_string(&request).unwrap();
    let answer = control(dir, "POST", path::EXEC, &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let response: ExecResponse = answer.typed();
    assert_eq!(response.exit_code, 0, "{script}: {response:?}");
    String::from_utf8(response.stdout_b64.0)
        .unwrap()
        .trim()
        .to_owned()
}

/// Listens for the guest's ready line.
struct ReadyListener(UnixListener);

impl ReadyListener {
    fn bind(dir: &Path) -> Self {
        let path = listener_path(&dir.join("v.sock"), READY_PORT);
        Self(UnixListener::bind(path).unwrap())
    }

    fn wait(&self) -> Ready {
        let (stream, _) = self.0.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

#[test]
fn a_guest_boots_talks_and_reboots() {
    let Some(image) = image("a_guest_boots_talks_and_reboots") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut emulator = Emulator::start(dir.path());
    image.configure(&emulator, dir.path(), "vm-boot");
    let listener = ReadyListener::bind(dir.path());
    emulator.start_instance();
    let ready = listener.wait();
    assert_eq!((ready.vm_id.as_str(), ready.error), ("vm-boot", None));

    let first = status(dir.path());
    assert_eq!(
        (&first.vm_id, &first.boot_id),
        (&ready.vm_id, &ready.boot_id)
    );
    assert!(dial(dir.path(), 4242).is_none(), "nobody listens there");
    // The console is the emulator's output.
    shell(dir.path(), "echo to-the-console > /dev/ttyS0");
    assert!(emulator.log().contains("to-the-console"));

    // What is asked during a pause is answered after it.
    emulator.set("PATCH", "/vm", json!({"state": "Paused"}));
    let mut early = UnixStream::connect(dir.path().join("v.sock")).unwrap();
    early
        .write_all(connect_line(CONTROL_PORT).as_bytes())
        .unwrap();
    assert_eq!(emulator.get("/")["state"], "Paused");
    emulator.set("PATCH", "/vm", json!({"state": "Resumed"}));
    let mut line = [0; 3];
    early.set_read_timeout(Some(LIMIT)).unwrap();
    early.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"OK ");
    assert_eq!(status(dir.path()).boot_id, ready.boot_id);

    // Limits can be changed under way.
    let limits = json!({
        "drive_id": "overlay", "rate_limiter": {"ops": {"size": 100_000, "refill_time": 100}},
    });
    emulator.set("PATCH", "/drives/overlay", limits);

    let answer = control(dir.path(), "POST", path::POWER, r#"{"action":"reboot"}"#);
    assert!(answer.status < 300, "{answer:?}");
    emulator.ends_with(0);
}

#[test]
fn a_guest_powers_off_without_an_api() {
    let Some(image) = image("a_guest_powers_off_without_an_api") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vm.json");
    let config = json!({
        "boot-source": image.boot_source("vm-file"),
        "drives": image.drives(dir.path()),
        "machine-config": {"vcpu_count": 2, "mem_size_mib": 256},
        "vsock": {"guest_cid": 3, "uds_path": dir.path().join("v.sock")},
        "entropy": {"rate_limiter": {"bandwidth": {"size": 65_536, "refill_time": 100}}},
        "serial": {"serial_out_path": dir.path().join("console.log")},
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let listener = ReadyListener::bind(dir.path());
    let mut command = program();
    command.arg("--no-api").arg("--config-file").arg(&file);
    let mut emulator = Emulator::spawn(dir.path(), &mut command);
    assert_eq!(listener.wait().vm_id, "vm-file");
    assert!(!emulator.socket().exists());
    assert_eq!(shell(dir.path(), "nproc"), "2");
    shell(dir.path(), "echo to-the-file > /dev/ttyS0");
    control(dir.path(), "POST", path::POWER, r#"{"action":"poweroff"}"#);
    emulator.ends_with(0);
    // Not before: the port is as slow as a port.
    let console = std::fs::read_to_string(dir.path().join("console.log")).unwrap();
    assert!(console.contains("to-the-file"), "{console}");
}

/// Pauses, snapshots and kills `emulator`; returns one that goes on.
fn hand_over(emulator: Emulator, dir: &Path, generation: u32, resume: bool) -> Emulator {
    let state = dir.join(format!("state-{generation}"));
    let mem = dir.join(format!("mem-{generation}"));
    emulator.set("PATCH", "/vm", json!({"state": "Paused"}));
    emulator.set(
        "PUT",
        "/snapshot/create",
        json!({"snapshot_path": state, "mem_file_path": mem}),
    );
    drop(emulator);
    for socket in ["api.sock", "v.sock"] {
        std::fs::remove_file(dir.join(socket)).unwrap();
    }
    let emulator = Emulator::start(dir);
    let load = json!({
        "snapshot_path": state, "resume_vm": resume,
        "mem_backend": {"backend_type": "File", "backend_path": mem},
    });
    emulator.set("PUT", "/snapshot/load", load);
    emulator
}

#[test]
fn a_snapshot_goes_on_in_another_process() {
    let Some(image) = image("a_snapshot_goes_on_in_another_process") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(dir.path());
    image.configure(&emulator, dir.path(), "vm-snap");
    let listener = ReadyListener::bind(dir.path());
    emulator.start_instance();
    let ready = listener.wait();
    shell(
        dir.path(),
        "echo in-memory > /run/mark; echo on-disk > /root/mark; sync",
    );
    let before = status(dir.path());

    let emulator = hand_over(emulator, dir.path(), 1, true);
    assert_eq!(emulator.get("/")["state"], "Running");
    let after = status(dir.path());
    assert_eq!(after.boot_id, ready.boot_id, "it was not booted again");
    assert!(after.uptime_ms >= before.uptime_ms);
    assert_eq!(
        shell(dir.path(), "cat /run/mark /root/mark"),
        "in-memory\non-disk"
    );

    // A snapshot of what came from a snapshot, loaded paused.
    shell(
        dir.path(),
        "echo second > /run/mark2; echo second > /root/mark2; sync",
    );
    let mut emulator = hand_over(emulator, dir.path(), 2, false);
    assert_eq!(emulator.get("/")["state"], "Paused");
    emulator.set("PATCH", "/vm", json!({"state": "Resumed"}));
    assert_eq!(
        shell(dir.path(), "cat /run/mark /run/mark2 /root/mark2"),
        "in-memory\nsecond\nsecond"
    );
    assert!(dial(dir.path(), 4242).is_none());
    control(dir.path(), "POST", path::POWER, r#"{"action":"reboot"}"#);
    emulator.ends_with(0);
}
