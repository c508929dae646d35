//! What the program says when it starts, and never says.

use serde_json::Value;

use crate::program::{KEY, Program, command};

/// Starts and ends it; everything it said.
fn said(env: &[(&str, &str)]) -> String {
    let mut program = Program::start(env);
    program.signal("-TERM");
    let (status, rest) = program.ended();
    assert_eq!(status, Some(0), "{rest}");
    program.said().to_owned() + &rest
}

#[test]
fn the_listening_line_says_how_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/fuse.db", dir.path().display());
    let text = said(&[
        ("ORCH_AUTH_TOKEN", "hunter2"),
        ("TOKEN_ENCRYPTION_KEY", KEY),
        ("DATABASE_URL", &url),
        ("ORCH_VM_PREFIX", "vm-"),
        ("ORCH_ALLOWED_CIDRS", " 10.0.0.0/8,,127.0.0.1/32 "),
        ("FIRECRACKER_BASE_URL", "http://127.0.0.1:1"),
        ("FIRECRACKER_TOKEN", "hunter2"),
    ]);
    let line = text
        .lines()
        .find(|line| line.contains(" listening "))
        .unwrap();
    for part in [
        "address=127.0.0.1:",
        "scheme=\"http\"",
        "backend=\"firecracker\"",
        "prefix=\"vm-\"",
        "auth=true",
        "allowed_blocks=2",
        "database=\"sqlite:///",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!text.contains("hunter2") && !text.contains(KEY), "{text}");
    let text = said(&[]);
    let line = text
        .lines()
        .find(|line| line.contains(" listening "))
        .unwrap();
    for part in [
        "backend=\"firecracker-stub\"",
        "prefix=\"fuse-\"",
        "auth=false",
        "allowed_blocks=0",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn log_lines_are_objects_when_asked_for() {
    let text = said(&[("FUSE_LOG_FORMAT", "json")]);
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let listening = lines
        .iter()
        .find(|line| line["message"] == "listening")
        .unwrap();
    assert_eq!(listening["level"], "INFO");
    assert_eq!(listening["auth"], false);
    assert!(listening["timestamp"].is_string(), "{listening}");
    let text = said(&[("FUSE_LOG_FORMAT", "xml"), ("RUST_LOG", "=")]);
    assert!(text.contains("is neither text nor json"), "{text}");
    assert!(text.contains("RUST_LOG is not a filter"), "{text}");
}

#[test]
fn what_is_unsafe_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/fuse.db", dir.path().display());
    let (cookies, keys_only, open) = (
        "session cookies travel in the clear",
        "every request without a key is refused",
        "everybody who reaches this port is trusted",
    );
    let token = ("ORCH_AUTH_TOKEN", "master");
    for (env, warnings) in [
        (vec![token], &[cookies][..]),
        (vec![token, ("ORCH_SECURE_COOKIES", "yes")], &[]),
        (vec![token, ("ORCH_SECURE_COOKIES", "no")], &[cookies]),
        (vec![("DATABASE_URL", url.as_str())], &[keys_only]),
        (vec![], &[open]),
    ] {
        let text = said(&env);
        for warning in [cookies, keys_only, open] {
            assert_eq!(
                text.contains(warning),
                warnings.contains(&warning),
                "{env:?}: {text}"
            );
        }
    }
}

#[test]
fn a_database_that_does_not_answer_is_named_without_its_password() {
    for url in [
        "postgres://u:hunter2@127.0.0.1:1/db",
        "postgres://u:hunter2@nohost.invalid/db",
        "postgres://u:hunter2@@:x/db",
        "postgres://127.0.0.1:1/db?password=hunter2&sslmode=nonsense",
        "hunter2",
    ] {
        let output = command().env("DATABASE_URL", url).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("DATABASE_URL"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        // Each cause once.
        assert!(text.matches("Connection refused").count() <= 1, "{text}");
    }
}
