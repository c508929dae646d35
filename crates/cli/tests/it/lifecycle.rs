//! `environment drain|fork|rotate-token` and `snapshot …`.

use serde_json::json;

use crate::fake::{Fake, empty, environment, error, json};
use crate::fuse::User;

const SNAPSHOT: &str = r#"{"id":"snap-1","vm_id":"fuse-a","mode":"manual","state":"ready",
    "kind":"disk","size_bytes":2048,"created_at":"2026-01-15T10:00:00Z",
    "updated_at":"2026-01-15T10:00:00Z"}"#;

fn orchestrator() -> Fake {
    Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/environments/fuse-a" => Some(json(200, &environment("running"))),
        "POST /v1/environments/fuse-a?action=drain" => Some(json(200, &environment("draining"))),
        "POST /v1/environments/fuse-a?action=rotate-token"
        | "DELETE /v1/environments/fuse-a"
        | "POST /v1/snapshots/snap-1?action=restore"
        | "DELETE /v1/snapshots/snap-1" => Some(empty()),
        "POST /v1/environments/fuse-a?action=fork" => {
            let mut fork: serde_json::Value =
                serde_json::from_str(&environment("running")).unwrap();
            fork["id"] = "fuse-fork-1".into();
            fork["warnings"] = json!(["host h1 has more allocated than it has: cpus 9 of 8"]);
            Some(json(201, &fork.to_string()))
        }
        "POST /v1/environments/fuse-a/snapshots" => Some(json(201, SNAPSHOT)),
        "GET /v1/snapshots/snap-1" => Some(json(200, SNAPSHOT)),
        "GET /v1/snapshots?vm_id=fuse-a&state=ready" => Some(json(
            200,
            &format!(r#"{{"snapshots":[{SNAPSHOT}],"next_cursor":"abc"}}"#),
        )),
        _ => None,
    })
}

#[test]
fn drain_says_that_nothing_was_destroyed() {
    let server = orchestrator();
    let user = User::connected(&server.url(), "tok");
    let run = user
        .run(&["env", "drain", "fuse-a"])
        .ok()
        .says("drained environment fuse-a")
        .says("fuse environment destroy fuse-a");
    assert!(
        run.stdout.contains("state              draining\n"),
        "{}",
        run.stdout
    );
    let run = user
        .run(&["env", "drain", "fuse-a", "--then-destroy", "-o", "json"])
        .ok();
    assert_eq!(run.json(), json!({"id": "fuse-a", "action": "drain"}));
    assert_eq!(
        server.lines().last().unwrap(),
        "DELETE /v1/environments/fuse-a"
    );
}

fn moved() -> String {
    let mut moved: serde_json::Value = serde_json::from_str(&environment("running")).unwrap();
    moved["id"] = "fuse-mig-1".into();
    moved["host_id"] = "h2".into();
    moved.to_string()
}

#[test]
fn a_move_says_where_to_and_shows_what_took_the_place() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/environments/fuse-a" => Some(json(200, &environment("running"))),
        "POST /v1/environments/fuse-a?action=migrate" => Some(json(201, &moved())),
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    let run = user
        .run(&["env", "migrate", "fuse-a", "--to", "h2"])
        .ok()
        .says("to host h2")
        .says("moved environment fuse-a to host h2: it is fuse-mig-1 now");
    assert!(run.stdout.contains("fuse-mig-1"), "{}", run.stdout);
    let sent: serde_json::Value =
        serde_json::from_str(&server.seen().last().unwrap().body).unwrap();
    assert_eq!(sent, json!({"target_host_id": "h2"}));
    let run = user.run(&["env", "migrate", "fuse-a", "-o", "json"]).ok();
    assert_eq!(run.json()["id"], "fuse-mig-1");
    user.run(&["env", "migrate", "fuse-a", "--lazy"])
        .exits(1)
        .says("--live");
}

#[test]
fn a_move_that_is_refused_says_why() {
    let why = "no other host can take vm fuse-a: no other firecracker host is registered";
    let server = Fake::start(move |seen| match seen.line.as_str() {
        "GET /v1/environments/fuse-a" => Some(json(200, &environment("running"))),
        "POST /v1/environments/fuse-a?action=migrate" => Some(error(503, "unavailable", why)),
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    user.run(&["env", "migrate", "fuse-a"]).exits(1).says(why);
}

#[test]
fn the_old_id_of_what_was_moved_is_understood() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/environments/fuse-a" => Some(error(404, "not_found", "vm fuse-a not found")),
        "GET /v1/environments?task_id=fuse-a" => Some(json(200, r#"{"environments":[]}"#)),
        "GET /v1/environments?task_id=a" => {
            Some(json(200, &format!(r#"{{"environments":[{}]}}"#, moved())))
        }
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["env", "get", "fuse-a"]).ok();
    let run = run.says("environment fuse-a was moved: it is fuse-mig-1 on host h2 now");
    assert!(run.stdout.contains("fuse-mig-1"), "{}", run.stdout);
}

#[test]
fn a_failed_drain_says_how_to_go_on() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/environments/fuse-a" => {
            let mut shown: serde_json::Value =
                serde_json::from_str(&environment("draining")).unwrap();
            shown["error"] = "drain command: exit status 3".into();
            Some(json(200, &shown.to_string()))
        }
        "POST /v1/environments/fuse-a?action=drain" => {
            Some(error(500, "internal", "drain command: exit status 3"))
        }
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    user.run(&["env", "drain", "fuse-a", "--then-destroy"])
        .exits(1)
        .says("drain command: exit status 3")
        .says("fuse environment destroy fuse-a");
    assert!(!server.lines().iter().any(|line| line.starts_with("DELETE")));
}

#[test]
fn rotate_and_fork() {
    let server = orchestrator();
    let user = User::connected(&server.url(), "tok");
    user.run(&["env", "rotate-token", "fuse-a"])
        .ok()
        .says("rotated the guest credentials of environment fuse-a")
        .prints("");
    let run = user
        .run(&[
            "env",
            "fork",
            "fuse-a",
            "--comment",
            "branch",
            "--require-capacity",
        ])
        .ok()
        .says("forked environment fuse-a into fuse-fork-1")
        .says("cpus 9 of 8");
    assert!(run.stdout.starts_with("id                 fuse-fork-1\n"));
    let last = server.seen().pop().unwrap();
    assert_eq!(last.body, r#"{"comment":"branch","require_capacity":true}"#);
    user.run(&[
        "env",
        "fork",
        "fuse-a",
        "--comment",
        "x",
        "--reuse-snapshot",
        "snap-1",
    ])
    .ok()
    .says("--comment is for a fresh snapshot");
    let run = user.run(&["env", "fork", "fuse-a", "-o", "json"]).ok();
    assert_eq!(run.json()["id"], "fuse-fork-1");
}

#[test]
fn snapshots() {
    let server = orchestrator();
    let user = User::connected(&server.url(), "tok");
    let run = user
        .run(&[
            "snapshot",
            "create",
            "fuse-a",
            "--comment",
            "c",
            "--retention",
            "60",
            "--metadata",
            "name=n",
            "--live",
        ])
        .ok()
        .says("created snapshot snap-1 of environment fuse-a")
        .says("cannot capture memory");
    assert!(
        run.stdout.contains("size               2.0 KB\n"),
        "{}",
        run.stdout
    );
    assert_eq!(
        server.seen().pop().unwrap().body,
        r#"{"comment":"c","retention_seconds":60,"metadata":{"name":"n"},"live":true}"#
    );
    let run = user
        .run(&["snap", "list", "--vm-id", "fuse-a", "--state", "ready"])
        .ok()
        .says("--cursor abc");
    assert!(run.stdout.contains("│ snap-1 │ fuse-a │"), "{}", run.stdout);
    user.run(&["snapshot", "list", "--state", "redy"])
        .exits(1)
        .says("--state takes creating");
    user.run(&["snapshot", "create", "fuse-a", "--metadata", "x"])
        .exits(1)
        .says("expected key=value");
    let run = user.run(&["snapshot", "get", "snap-1", "-o", "json"]).ok();
    assert_eq!(run.json()["kind"], "disk");
    // Nothing is sent without a yes.
    let before = server.lines().len();
    user.run(&["snapshot", "restore", "snap-1"])
        .exits(1)
        .says("--yes");
    user.run(&["snapshot", "delete", "snap-1"])
        .exits(1)
        .says("--yes");
    assert_eq!(server.lines().len(), before);
    user.run(&["snapshot", "restore", "snap-1", "--yes"])
        .ok()
        .says("restored snapshot snap-1");
    user.run(&["snapshot", "rm", "snap-1", "--yes"])
        .ok()
        .says("deleted snapshot snap-1");
}
