//! The steps of `build` as they go on, fail, or are interrupted.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use base64::Engine as _;
use futures_util::StreamExt as _;
use futures_util::stream::{once, pending};
use serde_json::json as value;
use tokio::sync::Notify;

use crate::fake::{Fake, empty, environment, events, json};
use crate::fuse::User;

const FUSEFILE: &str = "version: 1\nname: a\nbuild: [make]\n";
const EXEC: &str = "POST /v1/environments/fuse-a?action=exec&stream=1";
const SNAPSHOT: &str = "POST /v1/environments/fuse-a/snapshots";
const DESTROY: &str = "DELETE /v1/environments/fuse-a";
/// Bound of what never happens.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer in two parts; the second is not given before it is asked for.
fn in_two(first: String, second: String, goes_on: Arc<Notify>) -> Response<Body> {
    let end = once(async move {
        tokio::time::timeout(PATIENCE, goes_on.notified())
            .await
            .ok();
        Ok::<_, std::io::Error>(second)
    });
    let begin = once(async { Ok::<_, std::io::Error>(first) });
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(Body::from_stream(begin.chain(end)))
        .unwrap()
}

fn frame(event: &serde_json::Value) -> String {
    format!("data: {event}\n\n")
}

fn printed(stream: &str, text: &str) -> String {
    let data = base64::engine::general_purpose::STANDARD.encode(text);
    frame(&value!({"event": stream, "data": data}))
}

fn exit(code: i32) -> String {
    frame(&value!({"event": "exit", "exit_code": code}))
}

fn artifact() -> Response<Body> {
    let snapshot = value!({"id": "snap-9", "vm_id": "fuse-a", "kind": "disk", "state": "ready",
        "created_at": "2026-01-15T10:00:00Z", "updated_at": "2026-01-15T10:00:00Z"});
    json(201, &snapshot.to_string())
}

/// Everything but the step.
fn rest(line: &str) -> Option<Response<Body>> {
    match line {
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/environments/fuse-a/events" => {
            Some(events(&[("provisioning", ""), ("running", "")]))
        }
        SNAPSHOT => Some(artifact()),
        DESTROY => Some(empty()),
        _ => None,
    }
}

/// Its step prints two lines and does not end before it is told to.
fn printing(goes_on: Arc<Notify>) -> Fake {
    Fake::start(move |seen| match seen.line.as_str() {
        EXEC => {
            let begin = printed("stdout", "cc a.c\n") + &printed("stderr", "\u{1b}[1mlinking it");
            let end = printed("stdout", "linked\n") + &exit(0);
            Some(in_two(begin, end, Arc::clone(&goes_on)))
        }
        line => rest(line),
    })
}

/// A step that prints and fails.
fn failing() -> Fake {
    Fake::start(move |seen| match seen.line.as_str() {
        EXEC => {
            let said = printed("stdout", "cc a.c\n") + &printed("stderr", "a.c:1: no\n") + &exit(2);
            Some(in_two(said, String::new(), Arc::new(Notify::new())))
        }
        line => rest(line),
    })
}

fn user(server: &Fake) -> User {
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", FUSEFILE);
    user
}

fn read_until(mut from: impl std::io::Read, text: &str) -> String {
    let mut shown = String::new();
    let mut piece = [0; 4096];
    while !shown.contains(text) {
        let count = from.read(&mut piece).unwrap();
        assert!(count > 0, "it ended with {shown}");
        shown += &String::from_utf8_lossy(&piece[..count]);
    }
    shown
}

#[test]
fn output_is_on_stderr_before_the_step_ends() {
    let goes_on = Arc::new(Notify::new());
    let server = printing(Arc::clone(&goes_on));
    let user = user(&server);
    let mut child = user
        .command(&["build"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    read_until(
        child.stderr.as_mut().unwrap(),
        "cc a.c\n\u{1b}[1mlinking it",
    );
    goes_on.notify_one();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "snap-9\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("linked\n  RUN    [1/1]   make "), "{said}");
    assert!(said.contains("  layers  0 cached, 1 built "), "{said}");
}

#[test]
fn a_terminal_shows_the_last_line_of_the_running_step() {
    let goes_on = Arc::new(Notify::new());
    let server = printing(Arc::clone(&goes_on));
    let user = user(&server);
    let Ok(mut child) = user.on_terminal(&["build"]).stdout(Stdio::piped()).spawn() else {
        return;
    };
    let mut screen = child.stdout.take().unwrap();
    let shown = read_until(&mut screen, "linking it");
    for text in ["placed on host h1", "[1/1] make"] {
        assert!(shown.contains(text), "{text:?} {shown}");
    }
    // There is nothing that `q` stops.
    assert!(!shown.contains("to stop"), "{shown}");
    goes_on.notify_one();
    let mut rest = Vec::new();
    screen.read_to_end(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.trim_end().ends_with("snap-9"), "{rest}");
}

#[test]
fn a_failed_step_ends_with_its_output_and_the_command_that_shows_it() {
    let server = failing();
    let user = user(&server);
    let command = "--timeout 10m --shell 'cd '\\''/workspace'\\'' && make'";
    let run = user
        .run(&["build"])
        .exits(1)
        .says("cc a.c\na.c:1: no\n")
        .says("build phase ended with exit code 2\n")
        .says("`fuse build --keep` leaves one")
        .says(&format!("  fuse environment exec BUILDER {command}\n"));
    // Shown when it came, and not again.
    assert_eq!(run.stderr.matches("a.c:1: no").count(), 1, "{}", run.stderr);
    user.run(&["build", "--keep"])
        .exits(1)
        .says(&format!("  fuse environment exec fuse-a {command}\n"));
    if let Some(run) = user.run_on_terminal(&["build"]) {
        let text = run.exits(1).stdout.replace("\r\n", "\n");
        assert!(text.contains("cc a.c\na.c:1: no\n"), "{text}");
    }
    let run = user.run(&["build", "-o", "json"]).exits(1);
    assert_eq!(run.stdout, "");
    let error = run.error();
    assert_eq!(error["code"], "build");
    let message = error["message"].as_str().unwrap();
    let begin = "build phase ended with exit code 2\ncc a.c\na.c:1: no\n";
    assert!(message.starts_with(begin), "{message}");
    let events: Vec<serde_json::Value> = run
        .stderr
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|line: &serde_json::Value| line["event"] == "step")
        .collect();
    assert_eq!(events.len(), 1, "{}", run.stderr);
    assert_eq!(events[0]["exit_code"], 2);
    assert_eq!(events[0]["vm_id"], "fuse-a");
}

#[test]
fn a_secret_that_a_step_prints_is_not_shown() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        EXEC => {
            // In two pieces, and on the other stream in between.
            let said = printed("stdout", "login with hunter2h")
                + &printed("stderr", "trying\n")
                + &printed("stdout", "unter2 refused\n")
                + &exit(1);
            Some(crate::fake::stream(said))
        }
        line => rest(line),
    });
    let user = user(&server).with("TOKEN", "hunter2hunter2");
    for more in [
        &["--secret-env", "TOKEN"][..],
        &["--secret-env", "TOKEN", "-o", "json"],
    ] {
        let run = user.run(&[&["build"], more].concat()).exits(1);
        assert!(!run.stderr.contains("hunter2"), "{}", run.stderr);
        let said = run.stderr.contains("[REDACTED] refused");
        assert!(said, "{}", run.stderr);
    }
    if let Some(run) = user.run_on_terminal(&["build", "--secret-env", "TOKEN"]) {
        assert!(!run.stdout.contains("hunter2"), "{}", run.stdout);
    }
}

#[test]
fn a_stream_that_breaks_off_is_told() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        EXEC => Some(crate::fake::stream(printed("stdout", "cc a.c\n"))),
        line => rest(line),
    });
    user(&server).run(&["build"]).exits(1).says("cc a.c\n");
    assert_eq!(server.lines().last().unwrap(), DESTROY);
}

/// Interrupts a command while it waits for the answer to `line`: what it says, and what it asked for last.
fn interrupted_at(command: &str, line: &'static str) -> (String, String) {
    let (asked, waiting) = mpsc::channel();
    let goes_on = Arc::new(Notify::new());
    let answered = Arc::clone(&goes_on);
    let server = Fake::start(move |seen| match seen.line.as_str() {
        seen if seen == line => {
            asked.send(()).unwrap();
            if line == "POST /v1/environments" {
                let whole = in_two(
                    String::new(),
                    environment("provisioning"),
                    Arc::clone(&answered),
                );
                let (mut parts, body) = whole.into_parts();
                parts.status = axum::http::StatusCode::ACCEPTED;
                return Some(Response::from_parts(parts, body));
            }
            let silence = pending::<Result<String, std::io::Error>>();
            Some(
                Response::builder()
                    .header("content-type", "text/event-stream")
                    .body(Body::from_stream(silence))
                    .unwrap(),
            )
        }
        EXEC => Some(crate::fake::stream(exit(0))),
        seen => rest(seen),
    });
    let user = user(&server);
    let child = user
        .command(&[command])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    waiting.recv().unwrap();
    interrupt(&child);
    goes_on.notify_one();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{line}: {said}");
    (said, server.lines().pop().unwrap())
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

#[test]
fn an_interrupted_build_leaves_no_builder_whatever_it_was_at() {
    for line in [
        "POST /v1/environments",
        "GET /v1/environments/fuse-a/events",
        EXEC,
        SNAPSHOT,
    ] {
        let (said, last) = interrupted_at("build", line);
        let destroying = said.contains("interrupted; destroying builder fuse-a");
        assert!(destroying, "{line}: {said}");
        assert_eq!(last, DESTROY, "{line}");
    }
}

/// What was asked for is the user's; whoever stops watching is told what it is.
#[test]
fn an_interrupted_up_names_what_it_leaves() {
    for line in [
        "POST /v1/environments",
        "GET /v1/environments/fuse-a/events",
    ] {
        let (said, last) = interrupted_at("up", line);
        let named = "interrupted; environment fuse-a is still provisioning";
        assert!(said.contains(named), "{line}: {said}");
        assert_ne!(last, DESTROY, "{line}");
    }
}
