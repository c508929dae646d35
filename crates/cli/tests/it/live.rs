//! The live view of `up`, on a terminal.

use std::io::Read as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use futures_util::StreamExt as _;
use futures_util::stream::{once, pending};
use serde_json::json as value;
use tokio::sync::Notify;

use crate::fake::{Fake, environment, json};
use crate::fuse::User;
use crate::terminal::Terminal;
use crate::up::becoming_healthy;

/// Bound of what never happens.
const PATIENCE: Duration = Duration::from_secs(20);

/// Its script prints a line and does not go on before it is told to.
fn printing(goes_on: Arc<Notify>) -> Fake {
    Fake::start(move |seen| match seen.line.as_str() {
        "POST /v1/placement/explain" => {
            let hosts = value!([
                {"host_id": "h1", "state": "active", "eligible": true, "score": 1, "free_cpus": 1,
                 "free_ram_mb": 1, "free_storage_gb": 1, "free_vms": 1, "rank": 1},
                {"host_id": "h2", "state": "cordoned", "eligible": false, "score": 1, "free_cpus": 1,
                 "free_ram_mb": 1, "free_storage_gb": 1, "free_vms": 1, "gate": "state"},
            ]);
            let explained = value!({"policy": "spread", "host_id": "h1", "rejected": {"state": 1},
                "hosts": hosts});
            Some(json(200, &explained.to_string()))
        }
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/environments/fuse-a" => Some(json(200, &environment("running"))),
        "GET /v1/environments/fuse-a/logs?source=startup&follow=true" => {
            let printed = once(async { Ok::<_, std::io::Error>("cc a.c\n\u{1b}[1mlinking it") });
            Some(Response::new(Body::from_stream(printed.chain(pending()))))
        }
        "GET /v1/environments/fuse-a/events" => {
            let goes_on = Arc::clone(&goes_on);
            let begin = once(async { Ok::<_, std::io::Error>(record("provisioning")) });
            let end = once(async move {
                // Somebody who waits in vain is to see the end, and fail.
                tokio::time::timeout(PATIENCE, goes_on.notified())
                    .await
                    .ok();
                Ok(record("running"))
            });
            let answer = Response::builder().header("content-type", "text/event-stream");
            Some(answer.body(Body::from_stream(begin.chain(end))).unwrap())
        }
        _ => None,
    })
}

fn record(state: &str) -> String {
    let event = value!({"id": state, "event": "state", "vm_id": "fuse-a", "state": state,
        "updated_at": "2026-01-15T10:00:00Z"});
    format!("id: {state}\ndata: {event}\n\n")
}

#[test]
fn the_last_line_of_a_running_step_and_the_reason_of_the_placement() {
    let goes_on = Arc::new(Notify::new());
    let server = printing(Arc::clone(&goes_on));
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", "version: 1\nname: a\nbuild: [make]\nrun: x\n");
    let Ok(mut child) = user.on_terminal(&["up"]).stdout(Stdio::piped()).spawn() else {
        return;
    };
    let mut screen = child.stdout.take().unwrap();
    let mut shown = String::new();
    let mut piece = [0; 4096];
    // The script has begun, so the step has.
    while !(shown.contains("linking it") && shown.contains("[1/1] make")) {
        let count = screen.read(&mut piece).unwrap();
        assert!(count > 0, "it ended with {shown}");
        shown += &String::from_utf8_lossy(&piece[..count]);
    }
    assert!(
        shown.contains("placed on host h1 (the only eligible host; turned away: state 1)"),
        "{shown}"
    );
    goes_on.notify_one();
    let mut rest = Vec::new();
    screen.read_to_end(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("running"), "{rest}");
    // Without a terminal nobody is asked for what nobody sees.
    goes_on.notify_one();
    let before = server.seen().len();
    user.run(&["up"]).ok().says("placed on host h1\n");
    let asked = server.lines().split_off(before);
    assert!(
        !asked
            .iter()
            .any(|line| line.contains("logs") || line.contains("explain")),
        "{asked:?}"
    );
}

/// What `fuse up` shows in a terminal of 90 columns, and its status at the end; `None` without tmux.
fn terminal(test: &str, server: &Fake, fusefile: &str, more: &str) -> Option<Terminal> {
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", fusefile);
    let (dir, fuse) = (user.home().display(), env!("CARGO_BIN_EXE_fuse"));
    let script = format!("cd {dir}; {fuse} up {more}; echo \"status $?\"");
    Terminal::run(test, user, &script)
}

#[test]
fn nothing_runs_after_a_step_that_failed() {
    let goes_on = Arc::new(Notify::new());
    let told = Arc::clone(&goes_on);
    let cause = "startup script failed in the build phase with exit status 90: make: *** [all] Error 2\nmake: gone";
    let server = Fake::start(move |seen| match seen.line.as_str() {
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/environments/fuse-a/events" => {
            let told = Arc::clone(&told);
            let step = value!({"id": "1", "event": "step", "vm_id": "fuse-a", "state": "", "index": 1, "total": 2,
                "exit_code": 2, "duration_ms": 1500, "updated_at": "2026-01-15T10:00:00Z"});
            let step = format!("{}id: 1\ndata: {step}\n\n", record("provisioning"));
            let begin = once(async { Ok::<_, std::io::Error>(step) });
            let end = once(async move {
                tokio::time::timeout(PATIENCE, told.notified()).await.ok();
                let event = value!({"id": "2", "event": "state", "vm_id": "fuse-a", "state": "failed",
                    "error": cause, "updated_at": "2026-01-15T10:00:00Z"});
                Ok(format!("id: 2\ndata: {event}\n\n"))
            });
            let answer = Response::builder().header("content-type", "text/event-stream");
            Some(answer.body(Body::from_stream(begin.chain(end))).unwrap())
        }
        _ => None,
    });
    let test = "live::nothing_runs_after_a_step_that_failed";
    let fusefile = "version: 1\nname: a\nbuild: [make, make install]\n";
    let Some(terminal) = terminal(test, &server, fusefile, "") else {
        return;
    };
    let screen = terminal.shows("undoing what was begun");
    assert!(screen.contains("  FAILED [1/2]   make "), "{screen}");
    assert!(
        !screen.contains("[2/2]") && !screen.contains('█'),
        "{screen}"
    );
    goes_on.notify_one();
    let screen = terminal.shows("status 1");
    // On one line, because the whole of it follows.
    assert!(
        screen.contains("failed  startup script failed in the build phase with exit status 90:…\n"),
        "{screen}"
    );
    assert!(screen.contains("make: gone\n"), "{screen}");
    assert!(!screen.contains("undoing"), "{screen}");
}

#[test]
fn health_is_one_line_that_moves() {
    let server = becoming_healthy(
        "nobody listens on port 8080 of this guest, which is said in more words than fit",
    );
    let test = "live::health_is_one_line_that_moves";
    let fusefile = "version: 1\nname: a\nhealthcheck: {exec: [\"true\"]}\n";
    let Some(terminal) = terminal(test, &server, fusefile, "--wait-healthy") else {
        return;
    };
    for failures in ["(1 consecutive failure)", "(2 consecutive failures)"] {
        let screen = terminal.shows(failures);
        assert!(
            screen.contains("waiting for the healthcheck, at most 2m  "),
            "{screen}"
        );
        assert_eq!(screen.matches("consecutive").count(), 1, "{screen}");
        assert!(!screen.contains("than fit"), "{screen}");
    }
    let screen = terminal.shows("status 0");
    assert!(screen.contains("healthy\nenvironment "), "{screen}");
    assert!(
        !screen.contains("waiting") && !screen.contains("failing"),
        "{screen}"
    );
}
