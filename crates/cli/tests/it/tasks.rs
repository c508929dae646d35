//! `task …`.

use crate::fake::{Fake, error, json};
use crate::fuse::User;

const FAILED: &str = r#"{"task_id":"a","vm_id":"fuse-a","run_status":"failed",
    "last_error":"startup script failed in the run phase with exit status 3",
    "output":{"exit_code":3,"stdout":"out\n","stderr":"no such file\n"},
    "assigned_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z"}"#;

#[test]
fn a_task_tells_how_it_ended_and_what_it_wrote() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/tasks/a" => Some(json(200, FAILED)),
        "GET /v1/tasks/b" => Some(json(
            200,
            r#"{"task_id":"b","vm_id":"fuse-b","run_status":"running",
                "assigned_at":"2026-01-15T10:00:00Z","updated_at":"2026-01-15T10:00:00Z"}"#,
        )),
        line if line.starts_with("GET /v1/tasks/") => {
            Some(error(404, "not_found", "task not found"))
        }
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["task", "get", "a"]).ok();
    assert_eq!(
        run.stdout,
        "task id            a\n\
         environment        fuse-a\n\
         status             failed\n\
         assigned           2026-01-15 10:00\n\
         updated            2026-01-15 10:00\n\
         script exit        3\n\
         error              startup script failed in the run phase with exit status 3\n"
    );
    let run = user.run(&["task", "logs", "fuse-a"]).ok();
    assert_eq!(run.stdout, "out\n");
    assert!(run.stderr.ends_with("no such file\n"), "{}", run.stderr);
    assert!(run.stderr.contains("is the environment of task a"));
    let run = user.run(&["task", "get", "a", "-o", "json"]).ok();
    assert_eq!(run.json()["output"]["exit_code"], 3);
    user.run(&["task", "logs", "b"])
        .ok()
        .says("no output")
        .prints("");
    user.run(&["task", "get", "c"]).exits(1).says("not found");
}

#[test]
fn what_was_given_up_on_is_listed_page_by_page() {
    let server = Fake::start(|seen| match seen.line.as_str() {
        "GET /v1/dead-letters" => Some(json(
            200,
            r#"{"dead_letters":[{"kind":"orphan_destroy","entity_id":"fuse-x","reason":"disk is busy",
                "retry_count":5,"payload":{},"first_seen_at":"2026-01-15T10:00:00Z",
                "last_seen_at":"2026-01-15T11:00:00Z"}],"next_cursor":"c1"}"#,
        )),
        "GET /v1/dead-letters?cursor=c1" => Some(json(200, r#"{"dead_letters":[]}"#)),
        _ => None,
    });
    let user = User::connected(&server.url(), "tok");
    let run = user.run(&["dead-letters"]).ok().says("--cursor c1");
    for cell in [
        "orphan_destroy",
        "fuse-x",
        "5",
        "2026-01-15 11:00",
        "disk is busy",
    ] {
        assert!(run.stdout.contains(cell), "{cell}: {}", run.stdout);
    }
    let run = user.run(&["dead-letters", "-o", "json"]).ok();
    assert_eq!(run.json()["dead_letters"][0]["entity_id"], "fuse-x");
    user.run(&["dead-letters", "--cursor", "c1"])
        .ok()
        .says("nothing was given up on");
}
