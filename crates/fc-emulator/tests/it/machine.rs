//! A machine that runs in QEMU; what it boots does not matter here.
//!
//! The kernel is a file of zeroes: QEMU would refuse it, so one is made that it
//! takes, an ELF image with a PVH entry that halts.

use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::emulator::{Emulator, program};
use crate::image::{has_qemu, skip};

/// The smallest kernel: `cli; hlt; jmp` back, entered through the PVH note.
fn halting_kernel(dir: &Path) -> std::path::PathBuf {
    const BASE: u32 = 0x10_0000;
    const NOTE_AT: u32 = 0x200;
    const CODE_AT: u32 = 0x300;
    let mut elf = vec![0; 0x400];
    let mut put = |at: u32, bytes: &[u8]| {
        let at = at as usize;
        elf[at..at + bytes.len()].copy_from_slice(bytes);
    };
    // ELF header: 64-bit, little-endian, executable, x86-64, two program headers.
    put(0, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    put(16, &2u16.to_le_bytes());
    put(18, &62u16.to_le_bytes());
    put(20, &1u32.to_le_bytes());
    put(24, &u64::from(BASE + CODE_AT).to_le_bytes());
    put(32, &64u64.to_le_bytes());
    for (at, value) in [(52, 64u16), (54, 56), (56, 2)] {
        put(at, &value.to_le_bytes());
    }
    // PT_LOAD of the whole file and PT_NOTE of the note in it.
    let segments = [(1u32, 5u32, 0u32, 0x400u32), (4, 4, NOTE_AT, 20)];
    for (header, (kind, flags, offset, size)) in (0u32..).zip(segments) {
        let at = 64 + header * 56;
        put(at, &kind.to_le_bytes());
        put(at + 4, &flags.to_le_bytes());
        let fields = [offset, BASE + offset, BASE + offset, size, size, 4];
        for (field, value) in (0u32..).zip(fields) {
            put(at + 8 + field * 8, &u64::from(value).to_le_bytes());
        }
    }
    // Note of Xen's, type 18: the 32-bit entry point.
    put(NOTE_AT, &4u32.to_le_bytes());
    put(NOTE_AT + 4, &4u32.to_le_bytes());
    put(NOTE_AT + 8, &18u32.to_le_bytes());
    put(NOTE_AT + 12, b"Xen\0");
    put(NOTE_AT + 16, &(BASE + CODE_AT).to_le_bytes());
    put(CODE_AT, &[0xfa, 0xf4, 0xeb, 0xfc]);
    let path = dir.join("kernel");
    std::fs::write(&path, elf).unwrap();
    path
}

/// An emulator whose machine runs, unless the test has to be skipped.
fn running(test: &str, dir: &Path) -> Option<Emulator> {
    if let Err(why) = has_qemu() {
        skip(test, &why);
        return None;
    }
    let emulator = Emulator::start(dir);
    configure(&emulator, dir);
    emulator.start_instance();
    Some(emulator)
}

fn configure(emulator: &Emulator, dir: &Path) {
    let kernel = halting_kernel(dir);
    emulator.set("PUT", "/boot-source", json!({"kernel_image_path": kernel}));
    let disk = dir.join("disk");
    std::fs::write(&disk, [0; 4096]).unwrap();
    // The longest names that anybody gives: identifiers with their dashes replaced.
    let id = "f81d4fae_7dec_11d0_a765_00a0c91e6bf6";
    let drive = json!({
        "drive_id": id, "path_on_host": disk, "is_root_device": false, "is_read_only": false,
        "rate_limiter": {"bandwidth": {"size": 4096, "refill_time": 100}},
    });
    emulator.set("PUT", &format!("/drives/{id}"), drive);
    let vsock = json!({"guest_cid": 3, "uds_path": dir.join("v.sock")});
    emulator.set("PUT", "/vsock", vsock);
}

#[test]
fn a_running_machine_cannot_be_configured() {
    let dir = tempfile::tempdir().unwrap();
    let Some(emulator) = running("a_running_machine_cannot_be_configured", dir.path()) else {
        return;
    };
    let late = "The requested operation is not supported after starting the microVM.";
    let load = json!({
        "snapshot_path": "s", "mem_backend": {"backend_type": "File", "backend_path": "m"},
    });
    for (path, body) in [
        ("/boot-source", json!({"kernel_image_path": "k"})),
        (
            "/drives/a",
            json!({"drive_id": "a", "is_root_device": false}),
        ),
        (
            "/network-interfaces/a",
            json!({"iface_id": "a", "host_dev_name": "t"}),
        ),
        ("/vsock", json!({"guest_cid": 3, "uds_path": "u"})),
        (
            "/machine-config",
            json!({"vcpu_count": 1, "mem_size_mib": 128}),
        ),
        ("/entropy", json!({})),
        ("/serial", json!({})),
        ("/logger", json!({})),
        ("/actions", json!({"action_type": "InstanceStart"})),
        ("/snapshot/load", load),
    ] {
        assert_eq!(emulator.refused("PUT", path, body), late, "{path}");
    }
    let update = json!({"vcpu_count": 2});
    assert_eq!(emulator.refused("PATCH", "/machine-config", update), late);
    assert_eq!(
        emulator.refused("PATCH", "/drives/a", json!({"drive_id": "a"})),
        "Drive config error: Invalid block device ID: a"
    );
    emulator.set("PUT", "/actions", json!({"action_type": "FlushMetrics"}));
}

#[test]
fn a_machine_pauses_and_resumes_as_often_as_asked() {
    let dir = tempfile::tempdir().unwrap();
    let test = "a_machine_pauses_and_resumes_as_often_as_asked";
    let Some(emulator) = running(test, dir.path()) else {
        return;
    };
    let snapshot = json!({
        "snapshot_path": dir.path().join("state"), "mem_file_path": dir.path().join("mem"),
    });
    assert_eq!(
        emulator.refused("PUT", "/snapshot/create", snapshot.clone()),
        "Create snapshot error: Cannot save the microVM state: Operation not allowed: \
         save/restore unavailable while running"
    );
    for (state, shown) in [
        ("Resumed", "Running"),
        ("Paused", "Paused"),
        ("Paused", "Paused"),
        ("Resumed", "Running"),
        ("Paused", "Paused"),
    ] {
        emulator.set("PATCH", "/vm", json!({"state": state}));
        assert_eq!(emulator.get("/")["state"], shown);
    }
    let mut diff = snapshot.clone();
    diff["snapshot_type"] = "Diff".into();
    assert_eq!(
        emulator.refused("PUT", "/snapshot/create", diff),
        "Create snapshot error: Diff snapshots are not available in fc-emulator; take a Full one"
    );
    // Twice in one pause, over the same files.
    emulator.set("PUT", "/snapshot/create", snapshot.clone());
    let first = std::fs::read(dir.path().join("mem")).unwrap();
    emulator.set("PUT", "/snapshot/create", snapshot);
    assert!(first == std::fs::read(dir.path().join("mem")).unwrap());
    // A path that cannot be written leaves nothing.
    let nowhere =
        json!({"snapshot_path": "/no/dir/state", "mem_file_path": dir.path().join("mem2")});
    let fault = emulator.refused("PUT", "/snapshot/create", nowhere);
    assert!(fault.starts_with("Create snapshot error: "), "{fault}");
    assert!(!dir.path().join("mem2").exists());
    assert!(!dir.path().join("mem2.partial").exists());
    emulator.set("PATCH", "/vm", json!({"state": "Resumed"}));
}

#[test]
fn snapshots_that_are_none_end_the_process_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let test = "snapshots_that_are_none_end_the_process_with_a_reason";
    let Some(emulator) = running(test, dir.path()) else {
        return;
    };
    let (state, mem) = (dir.path().join("state"), dir.path().join("mem"));
    emulator.set("PATCH", "/vm", json!({"state": "Paused"}));
    let files = json!({"snapshot_path": state, "mem_file_path": mem});
    emulator.set("PUT", "/snapshot/create", files);
    drop(emulator);
    std::fs::remove_file(dir.path().join("api.sock")).unwrap();
    std::fs::remove_file(dir.path().join("v.sock")).unwrap();

    // As they are, they bring the machine back, limits and all.
    let mut second = Emulator::start(dir.path());
    let load = json!({
        "snapshot_path": state, "resume_vm": true,
        "mem_backend": {"backend_type": "File", "backend_path": mem},
    });
    second.set("PUT", "/snapshot/load", load);
    assert_eq!(second.get("/")["state"], "Running");
    second.signal(Signal::TERM);
    second.ends_with(143);

    let whole = std::fs::read(&mem).unwrap();
    std::fs::write(&mem, &whole[..whole.len() / 2]).unwrap();
    let text = std::fs::read_to_string(&state).unwrap();
    let other = text.replace("\"qemu\": \"", "\"qemu\": \"0.");
    std::fs::write(dir.path().join("other"), other).unwrap();
    for (state, mem, reason) in [
        (&state, &mem, "QEMU ended (exit status: 1)"),
        (
            &state,
            &dir.path().join("gone"),
            "Cannot open the memory file",
        ),
        (
            &mem,
            &mem,
            "is not a snapshot of this version of fc-emulator",
        ),
        (&dir.path().join("other"), &mem, "It was taken with QEMU 0."),
    ] {
        let mut emulator = Emulator::start(dir.path());
        let load = json!({
            "snapshot_path": state, "mem_backend": {"backend_type": "File", "backend_path": mem},
        });
        let fault = emulator.refused("PUT", "/snapshot/load", load);
        assert!(fault.contains(reason), "{fault}");
        emulator.ends_with(1);
        assert!(emulator.log().contains(reason));
    }
}

#[test]
fn qemu_dies_with_the_emulator() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut emulator) = running("qemu_dies_with_the_emulator", dir.path()) else {
        return;
    };
    let qemu = emulator.qemu();
    emulator.signal(Signal::KILL);
    emulator.wait();
    qemu.ends();
    // Killed like that, neither this program nor the real one can remove them.
    for socket in ["api.sock", "v.sock"] {
        std::fs::remove_file(dir.path().join(socket)).unwrap();
    }

    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut emulator = Emulator::start(dir.path());
        configure(&emulator, dir.path());
        emulator.start_instance();
        let qemu = emulator.qemu();
        emulator.signal(signal);
        emulator.ends_with(code);
        qemu.ends();
    }
}

#[test]
fn the_emulator_fails_when_qemu_dies() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut emulator) = running("the_emulator_fails_when_qemu_dies", dir.path()) else {
        return;
    };
    emulator.qemu().kill();
    emulator.ends_with(1);
    assert!(
        emulator.log().contains("QEMU ended (signal: 9 (SIGKILL))"),
        "{}",
        emulator.log()
    );
}

#[test]
fn what_qemu_complains_about_is_passed_on() {
    if let Err(why) = has_qemu() {
        return skip("what_qemu_complains_about_is_passed_on", &why);
    }
    let dir = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(dir.path());
    // A file of text is no kernel.
    let kernel = dir.path().join("fc.log");
    emulator.set("PUT", "/boot-source", json!({"kernel_image_path": kernel}));
    let fault = emulator.refused("PUT", "/actions", json!({"action_type": "InstanceStart"}));
    assert!(
        fault.starts_with("Start microvm error: Cannot start QEMU: QEMU ended at once"),
        "{fault}"
    );
    assert!(fault.contains("qemu"), "{fault}");
}

#[test]
fn a_configuration_file_boots_at_once() {
    if let Err(why) = has_qemu() {
        return skip("a_configuration_file_boots_at_once", &why);
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vm.json");
    let config = json!({
        "boot-source": {"kernel_image_path": halting_kernel(dir.path())},
        "drives": [],
        "machine-config": {"vcpu_count": 2, "mem_size_mib": 64},
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let emulator = Emulator::start_with(dir.path(), program().arg("--config-file").arg(&file));
    assert_eq!(emulator.get("/")["state"], "Running");
    assert_eq!(emulator.get("/machine-config")["vcpu_count"], 2);
}

#[test]
fn a_tap_is_held_while_the_machine_runs() {
    let test = "a_tap_is_held_while_the_machine_runs";
    if let Err(why) = has_qemu() {
        return skip(test, &why);
    }
    if !rustix::process::geteuid().is_root() {
        return skip(test, "TAP devices need root");
    }
    let dir = tempfile::tempdir().unwrap();
    let mut emulator = Emulator::start(dir.path());
    let tap = format!("fcet{}", std::process::id() % 1_000_000);
    let exists = || Path::new("/sys/class/net").join(&tap).exists();
    let network = json!({"iface_id": "eth0", "host_dev_name": tap});
    emulator.set("PUT", "/network-interfaces/eth0", network);
    assert!(exists());
    let second = json!({"iface_id": "eth1", "host_dev_name": tap});
    assert_eq!(
        emulator.refused("PUT", "/network-interfaces/eth1", second),
        format!("Network config error: The host device name is already in use: {tap}")
    );
    configure(&emulator, dir.path());
    emulator.start_instance();
    assert!(exists());
    let qemu = emulator.qemu();
    emulator.signal(Signal::TERM);
    emulator.ends_with(143);
    qemu.ends();
    assert!(!exists(), "one that was made for the machine goes with it");
}
