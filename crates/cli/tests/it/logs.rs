//! `environment logs`, `task logs` of every source, and what a failed create leaves.

use axum::body::Body;
use axum::http::Response;

use crate::fake::{Fake, environment, error, events, json};
use crate::fuse::User;

const TASK: &str = r#"{"task_id":"a","vm_id":"fuse-a","run_status":"failed",
    "last_error":"cannot boot the vm","failure":{"step":"boot",
    "placement":{"host_id":"h1","policy":"spread","candidates":3},
    "timings":[{"step":"boot","duration_ms":182.44},{"step":"host.spawn","duration_ms":3.0}],
    "console_bytes":9120,"agent_bytes":0,"kept_until":"2026-01-16T10:00:00Z"},
    "assigned_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z"}"#;

fn text(body: &'static str) -> Response<Body> {
    Response::new(Body::from(body))
}

fn server() -> Fake {
    Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/environments/fuse-a/logs?source=startup" => Some(text("hello\n")),
        "GET /v1/environments/fuse-a/logs?source=startup&phase=build" => Some(text("built\n")),
        "GET /v1/environments/fuse-a/logs?source=console&follow=true" => {
            Some(text("booted\n\u{e9}"))
        }
        "GET /v1/environments?task_id=a" => Some(json(
            200,
            &format!(r#"{{"environments":[{}]}}"#, environment("running")),
        )),
        "GET /v1/tasks/a" => Some(json(200, TASK)),
        "GET /v1/tasks/a/logs?source=console" => Some(text("Kernel panic\n")),
        line if line.starts_with("GET /v1/environments/") => {
            Some(error(404, "not_found", "vm a not found"))
        }
        _ => None,
    })
}

#[test]
fn outputs_are_printed_as_they_come() {
    let server = server();
    let user = User::connected(&server.url(), "tok");
    user.run(&["environment", "logs", "fuse-a"])
        .ok()
        .prints("hello\n");
    user.run(&["env", "logs", "fuse-a", "--phase", "build"])
        .ok()
        .prints("built\n");
    // A task id is understood.
    let run = user.run(&["environment", "logs", "a"]).ok();
    assert_eq!(run.stdout, "hello\n");
    assert!(
        run.stderr.contains("is the task of environment fuse-a"),
        "{}",
        run.stderr
    );
    let follow = [
        "environment",
        "logs",
        "-f",
        "--source",
        "console",
        "fuse-a",
        "-o",
        "json",
    ];
    let run = user.run(&follow).ok();
    assert_eq!(run.stdout, "{\"text\":\"booted\\n\u{e9}\"}\n");
    user.run(&["environment", "logs", "fuse-a", "--source", "x"])
        .exits(1);
}

#[test]
fn a_failed_create_is_told_by_its_task() {
    let server = server();
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["task", "get", "a"]).ok();
    for row in [
        "failed step        boot\n",
        "placed on          h1, of 3 possible hosts (spread)\n",
        "  boot             182.4 ms\n",
        "  host.spawn       3.0 ms\n",
        "console kept       9120 bytes\n",
        "kept until         2026-01-16 10:00\n",
    ] {
        assert!(run.stdout.contains(row), "{row:?} in {}", run.stdout);
    }
    assert!(!run.stdout.contains("agent log"), "{}", run.stdout);
    user.run(&["task", "logs", "a", "--source", "console"])
        .ok()
        .prints("Kernel panic\n");
}

#[test]
fn a_create_waits_for_its_healthcheck() {
    let looks = std::sync::atomic::AtomicUsize::new(0);
    let server = Fake::start(move |seen| match seen.line.as_str() {
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/environments/fuse-a" => {
            let mut record: serde_json::Value =
                serde_json::from_str(&environment("running")).unwrap();
            let look = looks.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let state = if look < 1 { "starting" } else { "passing" };
            record["health"] = serde_json::json!({"state": state, "since": "2026-01-15T10:00:00Z"});
            Some(json(200, &record.to_string()))
        }
        "GET /v1/environments/fuse-a/events" => Some(events(&[("running", "")])),
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    let check = r#"{"exec":["true"]}"#;
    let create = ["environment", "create", "--task-id", "a", "--wait-healthy"];
    user.run(&[&create[..], &["--healthcheck", check]].concat())
        .ok()
        .says("health: starting")
        .says("healthy");
    let sent: serde_json::Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!(sent["healthcheck"]["exec"][0], "true");
    let before = server.seen().len();
    user.run(&create)
        .exits(1)
        .says("give one with --healthcheck");
    user.run(&[&create[..], &["--healthcheck", "{"]].concat())
        .exits(1)
        .says("invalid --healthcheck");
    assert_eq!(server.seen().len(), before, "nothing was sent");
}
