//! A host that lacks something: one message that says what is wrong and what to do, exit status 1,
//! nothing half made.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// Starts the agent with an environment of its own and gives back its exit code and last line.
fn start(settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_fc-agent"))
        .env_clear()
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8(done.stderr).unwrap();
    (
        done.status.code(),
        text.lines().last().unwrap_or_default().to_owned(),
    )
}

fn image(dir: &Path) {
    for file in ["vmlinux.bin", "initramfs.img", "rootfs-fused.ext4"] {
        std::fs::write(dir.join(file), b"x").unwrap();
    }
}

#[test]
fn each_missing_thing_has_one_message() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    let sockets = format!("{root}/s");
    let base = [
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ("FC_DIR", root),
        ("FC_SOCK_DIR", sockets.as_str()),
        ("FC_AGENT_TOKEN", "secret-token-value"),
        ("FC_AGENT_BIND", "127.0.0.1"),
        ("FC_BIN", "/bin/true"),
        ("PUBLIC_HOST", "127.0.0.1"),
    ];
    let with = |changes: &[(&'static str, &str)]| {
        let mut settings = base.to_vec();
        settings.retain(|(key, _)| changes.iter().all(|(changed, _)| changed != key));
        settings.extend(
            changes
                .iter()
                .map(|(k, v)| (*k, *v))
                .filter(|(_, v)| !v.is_empty()),
        );
        let (code, line) = start(&settings);
        assert_eq!(code, Some(1), "{line}");
        assert!(
            line.starts_with("fc-agent: ") && !line.contains("secret-token-value"),
            "{line}"
        );
        line
    };
    let token = with(&[("FC_AGENT_TOKEN", "")]);
    assert!(token.contains("FC_AGENT_TOKEN is not set"), "{token}");
    let port = with(&[("FC_AGENT_PORT", "none")]);
    assert!(
        port.contains("FC_AGENT_PORT=\"none\" is not a port"),
        "{port}"
    );
    let host = with(&[("PUBLIC_HOST", "not a host")]);
    assert!(host.contains("PUBLIC_HOST"), "{host}");
    if !nix::unistd::geteuid().is_root() {
        let root = with(&[]);
        assert!(
            root.contains("needs root") && root.contains("sudo"),
            "{root}"
        );
        return;
    }
    let kernel = with(&[]);
    assert!(
        kernel.contains("vmlinux.bin is missing; run: fc-agent image build"),
        "{kernel}"
    );
    image(dir.path());
    let long = format!("{root}/{}", "s".repeat(90));
    let long = with(&[("FC_SOCK_DIR", long.as_str())]);
    assert!(
        long.contains("too long") && long.contains("FC_SOCK_DIR"),
        "{long}"
    );
    let vmm = with(&[("FC_BIN", "/nowhere/firecracker")]);
    assert!(
        vmm.contains("/nowhere/firecracker does not exist; set FC_BIN"),
        "{vmm}"
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let used = with(&[("FC_AGENT_PORT", port.as_str())]);
    assert!(
        used.contains("is already in use") && used.contains("FC_AGENT_PORT"),
        "{used}"
    );
    assert!(!dir.path().join("agent-state").exists(), "nothing was made");
}

#[test]
fn version_and_help_need_no_settings() {
    for flag in ["--version", "--help"] {
        let program = Command::new(env!("CARGO_BIN_EXE_fc-agent"))
            .arg(flag)
            .env_clear()
            .output();
        let done = program.unwrap();
        assert!(done.status.success());
        assert!(String::from_utf8(done.stdout).unwrap().contains("fc-agent"));
    }
}
