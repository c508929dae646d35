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
    while !shown.contains("linking it") {
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
