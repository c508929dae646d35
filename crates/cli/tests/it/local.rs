//! `local`, as far as it goes without real daemons: refusals, and that they leave nothing.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::fuse::User;

fn program(dir: &Path, name: &str, script: &str) {
    fs::create_dir_all(dir).unwrap();
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A user with programs that end at once and an image that is none.
fn user() -> User {
    let user = User::new();
    let home = user.home().to_string_lossy().into_owned();
    for name in ["orchestrator", "fc-agent", "fc-emulator"] {
        program(
            &user.home().join("bin"),
            name,
            "echo \"$0 has nothing to do\" >&2; exit 3",
        );
    }
    for file in ["vmlinux.bin", "initramfs.img", "rootfs-fused.ext4"] {
        user.write(&format!("image/{file}"), "");
    }
    user.with("FUSE_LOCAL_BIN_DIR", &format!("{home}/bin"))
        .with("FUSE_IMAGE_DIR", &format!("{home}/image"))
        .with("FUSE_LOCAL_ORCH_PORT", &free_port().to_string())
        .with("FUSE_LOCAL_AGENT_PORT", &free_port().to_string())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn state(user: &User) -> bool {
    user.home().join(".fuse/local").exists()
}

#[test]
fn missing_programs_and_images_are_named() {
    let user = user();
    fs::remove_file(user.home().join("bin/orchestrator")).unwrap();
    user.run(&["local", "up"])
        .exits(1)
        .says("missing orchestrator")
        .says("FUSE_LOCAL_BIN_DIR");
    assert!(!state(&user));
    program(&user.home().join("bin"), "orchestrator", "exit 3");
    fs::remove_file(user.home().join("image/initramfs.img")).unwrap();
    let run = user.run(&["local", "up"]).exits(1);
    run.says("initramfs.img").says("make image");
    assert!(!state(&user));
}

#[test]
fn a_taken_port_is_named_with_its_holder() {
    let user = user();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    user.run(&["local", "up", "--orchestrator-port", &port])
        .exits(1)
        .says(&format!("port {port} (orchestrator) is in use"))
        .says(&format!("process {}", std::process::id()))
        .says("--orchestrator-port");
    user.run(&["local", "up", "--agent-port", &port])
        .exits(1)
        .says("(host agent) is in use");
    assert!(!state(&user));
}

#[test]
fn a_program_that_dies_is_reported_with_its_words_and_nothing_goes_on() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP starting daemons needs root");
        return;
    }
    let user = user();
    let run = user.run(&["local", "up"]).exits(1);
    let run = run
        .says("orchestrator ended right after its start")
        .says("has nothing to do");
    assert!(!run.stderr.contains("panicked"));
    let status = user.run(&["local", "status"]).exits(1);
    assert!(
        status.stdout.contains("orchestrator       not running"),
        "{}",
        status.stdout
    );
    assert_eq!(status.stderr, "");
    assert!(!user.config().contains("local"));
    for file in ["orchestrator.token", "fc-agent.token", "encryption.key"] {
        let path = user.home().join(".fuse/local").join(file);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600,
            "{file}"
        );
    }
    let mode = fs::metadata(user.home().join(".fuse/local"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn nothing_to_stop_is_fine() {
    let user = user();
    user.run(&["local", "down"]).ok().says("was not running");
    user.run(&["local", "down", "--purge"])
        .exits(1)
        .says("--yes");
    user.run(&["local", "down", "--purge", "--yes"]).ok();
    let status = user.run(&["local", "status", "-o", "json"]).exits(1);
    assert_eq!(status.json()["orchestrator"]["running"], false);
    assert!(!state(&user));
}
