//! `environment …`.

use crate::fake::{Fake, empty, environment, error, events, json};
use crate::fuse::User;

/// An orchestrator with one environment, whose events are these.
fn with_events(states: &'static [(&'static str, &'static str)]) -> Fake {
    Fake::start(move |seen| match seen.line.as_str() {
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/environments/fuse-a" => Some(json(200, &environment("running"))),
        "GET /v1/environments/fuse-a/events" => Some(events(states)),
        "DELETE /v1/environments/fuse-a" => Some(empty()),
        "GET /v1/environments?task_id=a" => Some(json(
            200,
            &format!(r#"{{"environments":[{}]}}"#, environment("running")),
        )),
        line if line.starts_with("GET /v1/environments?") => {
            Some(json(200, r#"{"environments":[]}"#))
        }
        line if line.starts_with("GET /v1/environments/")
            || line.starts_with("POST /v1/environments/a?") =>
        {
            Some(error(404, "not_found", "vm not found"))
        }
        // Also one that does not stream.
        "POST /v1/environments/fuse-a?action=exec"
        | "POST /v1/environments/fuse-a?action=exec&stream=1" => Some(json(
            200,
            r#"{"exit_code":7,"stdout":"out\n","stderr":"err\n"}"#,
        )),
        _ => None,
    })
}

const RUNNING: &[(&str, &str)] = &[("provisioning", ""), ("running", "")];
const FAILED: &[(&str, &str)] = &[("provisioning", ""), ("failed", "boot timed out")];
const DESTROYED: &[(&str, &str)] = &[("running", ""), ("destroying", ""), ("destroyed", "")];

#[test]
fn exec_is_the_guests_command() {
    let server = with_events(RUNNING);
    let user = User::connected(&server.url(), "tok");
    let run = user
        .run(&[
            "env",
            "exec",
            "fuse-a",
            "--timeout",
            "90s",
            "--",
            "ls",
            "-l",
            "",
        ])
        .exits(7);
    assert_eq!(
        (run.stdout.as_str(), run.stderr.as_str()),
        ("out\n", "err\n")
    );
    assert_eq!(
        server.seen()[0].body,
        r#"{"cmd":["ls","-l",""],"timeout_ms":90000}"#
    );
    let run = user
        .run(&["-o", "json", "env", "exec", "fuse-a", "--shell", "ls | wc"])
        .exits(7);
    assert_eq!(
        run.json(),
        serde_json::json!({"exit_code": 7, "stdout": "out\n", "stderr": "err\n"})
    );
    assert_eq!(run.stderr, "");
    // A task id is resolved, and said.
    user.run(&["env", "exec", "a", "--", "true"])
        .exits(7)
        .says("\"a\" is the task of environment fuse-a");
    user.run(&["env", "exec", "fuse-a"])
        .exits(1)
        .says("after --");
    user.run(&["env", "exec", "fuse-a", "--timeout", "1h", "--", "x"])
        .exits(7)
        .says("10m at most");
}

#[test]
fn create_waits_and_shows_what_runs() {
    let server = with_events(RUNNING);
    let user = User::connected(&server.url(), "tok");
    let args = [
        "environment",
        "create",
        "--task-id",
        "a",
        "--cpus",
        "2",
        "--label",
        "disk=nvme",
        "--manifest",
        "{\"version\":\"1\"}",
    ];
    let run = user
        .run(&args)
        .ok()
        .says("creating environment fuse-a (task a)");
    assert!(
        run.stdout
            .starts_with("id                 fuse-a\nstate              running\n")
    );
    assert_eq!(
        server.seen()[0].body,
        r#"{"task_id":"a","spec":{"cpus":2,"labels":{"disk":"nvme"}},"manifest_inline":"eyJ2ZXJzaW9uIjoiMSJ9"}"#
    );
    let run = user
        .run(&["env", "create", "--task-id", "a", "--until", "running"])
        .ok();
    assert!(
        run.stdout
            .starts_with("2026-01-15 10:00  provisioning\n2026-01-15 10:00  running"),
        "{}",
        run.stdout
    );
    let run = user
        .run(&["-o", "json", "env", "create", "--task-id", "a"])
        .ok();
    assert_eq!(run.json()["state"], "running");
    user.run(&["env", "create"])
        .exits(1)
        .says("--task-id is required");
    user.run(&[
        "env",
        "create",
        "--task-id",
        "a",
        "--gpu-profile",
        "1g.10gb",
    ])
    .exits(1)
    .says("invalid argument: spec.gpu_profile requires spec.gpus >= 1");
}

#[test]
fn a_create_that_fails_is_an_error_with_its_reason() {
    let server = with_events(FAILED);
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["env", "create", "--task-id", "a"]).exits(1);
    assert!(
        run.stderr
            .ends_with("environment fuse-a failed to provision: boot timed out\n"),
        "{}",
        run.stderr
    );
    assert_eq!(run.stdout, "");
    let run = user
        .run(&["-o", "json", "env", "create", "--task-id", "a"])
        .exits(1);
    assert_eq!(run.error()["code"], "provision_failed");
    user.run(&["env", "create", "--task-id", "a", "--follow"])
        .exits(1)
        .says("boot timed out");
}

#[test]
fn the_reason_survives_in_the_task_record() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/tasks/a" => Some(json(
            200,
            r#"{"task_id":"a","vm_id":"fuse-a","run_status":"failed","last_error":"startup script exited with status 3",
                "output":{"exit_code":3,"stdout":"","stderr":"line 1\nno such file\n"},
                "assigned_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z"}"#,
        )),
        line if line.contains("/v1/environments/fuse-a") => {
            Some(error(404, "not_found", "vm fuse-a not found"))
        }
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["env", "create", "--task-id", "a"]).exits(1);
    assert!(
        run.stderr.ends_with(
            "environment fuse-a failed to provision: startup script exited with status 3\nline 1\nno such file\n"
        ),
        "{}",
        run.stderr
    );
}

#[test]
fn watch_prints_events_until_the_end() {
    let server = with_events(DESTROYED);
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["env", "watch", "fuse-a"]).ok();
    assert_eq!(
        run.stdout,
        "2026-01-15 10:00  running\n2026-01-15 10:00  destroying\n2026-01-15 10:00  destroyed\n"
    );
    let run = user.run(&["-o", "json", "env", "follow", "fuse-a"]).ok();
    let states: Vec<_> = run
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["state"].clone())
        .collect();
    assert_eq!(states, ["running", "destroying", "destroyed"]);

    let failing = with_events(FAILED);
    let user = User::connected(&failing.url(), "tok");
    user.run(&["env", "watch", "fuse-a"]).ok();
    user.run(&["env", "watch", "fuse-a", "--exit-status"])
        .exits(1);
    user.run(&["env", "watch", "zzz"])
        .exits(1)
        .says("not found: vm not found");
}

#[test]
fn destroy_asks_and_can_be_repeated() {
    let server = with_events(RUNNING);
    let user = User::connected(&server.url(), "tok");
    user.run(&["env", "destroy", "fuse-a"])
        .exits(1)
        .says("--yes");
    assert_eq!(server.lines(), Vec::<String>::new());
    let run = user.run(&["env", "rm", "a", "--yes", "-o", "json"]).ok();
    assert_eq!(
        run.json(),
        serde_json::json!({"id": "fuse-a", "action": "destroy"})
    );
    user.run(&["env", "destroy", "gone", "--yes"])
        .exits(1)
        .says("not found");
    user.run(&["env", "destroy", "gone", "--yes", "--ignore-missing"])
        .ok();
}

#[test]
fn lists_are_scoped_to_the_active_host() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/hosts/h1" => Some(json(200, &crate::fake::host("h1", &[]))),
        line if line.starts_with("GET /v1/environments") => {
            Some(json(200, r#"{"environments":[]}"#))
        }
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    user.run(&["env", "list"])
        .ok()
        .says("no results")
        .prints("");
    user.run(&["host", "h1"]).ok();
    user.run(&["env", "list", "--state", "running"])
        .ok()
        .says("only host h1");
    user.run(&["env", "list", "--all"]).ok();
    user.run(&["env", "list", "--host-id", "h2", "-o", "json"])
        .ok()
        .prints("{\n  \"environments\": []\n}\n");
    let lines: Vec<_> = server
        .lines()
        .into_iter()
        .filter(|line| line.contains("environments"))
        .collect();
    assert_eq!(
        lines,
        [
            "GET /v1/environments",
            "GET /v1/environments?state=running&host_id=h1",
            "GET /v1/environments",
            "GET /v1/environments?host_id=h2",
        ]
    );
    user.run(&["env", "list", "--state", "failed"])
        .exits(1)
        .says("event stream");
}

#[test]
fn api_errors_keep_their_wording() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/environments/e500" => Some(error(500, "internal", "database is gone")),
        "GET /v1/environments/e401" => Some(error(401, "unauthorized", "invalid token")),
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["env", "get", "e500"]).exits(1);
    assert_eq!(run.stderr, "database is gone (request id: req_42)\n");
    let run = user.run(&["env", "get", "e401"]).exits(1);
    assert_eq!(
        run.stderr,
        "unauthorized: invalid token\n  re-run `fuse connect <url> --token <token>` with a valid token\n"
    );
    let run = user.run(&["-o", "json", "env", "get", "e500"]).exits(1);
    assert_eq!(
        run.error(),
        serde_json::json!({"code": "internal", "message": "database is gone (request id: req_42)", "request_id": "req_42"})
    );
    assert_eq!(run.stdout, "");
    user.run(&["env", "get", "x"])
        .exits(1)
        .says("no such route")
        .says("URL");
}
