//! `up`.

use crate::fake::{Fake, environment, error, events, json, records};
use crate::fuse::User;

const FUSEFILE: &str = "\
version: 1
name: a
resources: {cpus: 2, memory: 2GB}
env: {TOKEN: {secret: token}}
build: [make]
run: ./serve
copy: [{from: src, to: app}]
secrets: [extra]
";

fn orchestrator(states: &'static [(&'static str, &'static str)]) -> Fake {
    Fake::start(move |seen| match seen.line.as_str() {
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/environments/fuse-a" => Some(json(200, &environment("running"))),
        "GET /v1/environments/fuse-a/events" => Some(events(states)),
        "GET /v1/tasks/a" => Some(error(404, "not_found", "task a not found")),
        _ => None,
    })
}

fn project(url: &str) -> User {
    let user = User::connected(url, "tok").with("EXTRA", "from-env");
    user.write("Fusefile", FUSEFILE);
    user.write("src/main.py", "print()\n");
    user.write("secrets.txt", "# comment\ntoken=s3cr=t\n");
    user
}

#[test]
fn a_fusefile_becomes_a_running_environment() {
    let server = orchestrator(&[("provisioning", ""), ("running", "")]);
    let user = project(&server.url());
    let run = user
        .run(&[
            "up",
            "--secrets-file",
            "secrets.txt",
            "--secret-env",
            "extra=EXTRA",
        ])
        .ok()
        .says("creating environment fuse-a (task a)");
    assert_eq!(
        run.stdout,
        "\
2026-01-15 10:00  provisioning
2026-01-15 10:00  running
environment        fuse-a  running
task               a
host               h1
agent              10.0.0.5:19551
exec               fuse environment exec fuse-a -- <command>
"
    );
    let sent: serde_json::Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!(
        sent["secrets"],
        serde_json::json!({"token": "s3cr=t", "extra": "from-env"})
    );
    assert_eq!(
        sent["files"],
        serde_json::json!({"/workspace/app/main.py": "cHJpbnQoKQo="})
    );
    assert_eq!(sent["spec"], serde_json::json!({"cpus": 2, "ram_mb": 2048}));
    assert!(
        sent["startup_script"]
            .as_str()
            .unwrap()
            .contains("\nmake\n")
    );
    assert!(sent.get("required_secrets").is_none());

    let json = user
        .run(&[
            "-o",
            "json",
            "up",
            "--secrets-file",
            "secrets.txt",
            "--secret",
            "extra=1",
        ])
        .ok();
    assert_eq!(json.json()["id"], "fuse-a");
    assert!(
        json.stderr.contains("\"state\":\"provisioning\""),
        "{}",
        json.stderr
    );
    let run = user
        .run(&[
            "up",
            ".",
            "--secrets-file",
            "secrets.txt",
            "--secret",
            "extra=1",
            "--no-wait",
        ])
        .ok();
    assert!(
        run.stdout.contains("state              provisioning"),
        "{}",
        run.stdout
    );
}

#[test]
fn mistakes_send_nothing() {
    let server = orchestrator(&[]);
    let user = project(&server.url());
    user.run(&["up"])
        .exits(1)
        .says("missing secrets: extra, token");
    user.run(&["up", "--secret", "token="])
        .exits(1)
        .says("--allow-empty-secrets");
    let run = user.run(&["up", "--secret", "hunter2"]).exits(1);
    assert!(!run.stderr.contains("hunter2"), "{}", run.stderr);
    user.run(&["up", "-f", "nowhere"])
        .exits(1)
        .says("nowhere: ");
    user.write("bad/Fusefile", "version: 1\nmemroy: 1GB\n");
    user.run(&["up", "bad"])
        .exits(1)
        .says("bad/Fusefile:2: ")
        .says("memroy");
    let run = user.run(&["up", "bad", "-o", "json"]).exits(1);
    assert_eq!(run.error()["code"], "invalid_fusefile");
    user.write("empty/x", "");
    user.run(&["up", "empty"]).exits(1).says("Fusefile.yaml");
    user.run(&[
        "up",
        "--secret",
        "token=1",
        "--secret",
        "extra=1",
        "--dry-run",
    ])
    .ok();
    assert_eq!(server.lines(), Vec::<String>::new());
}

#[test]
fn a_dry_run_shows_the_request_without_secrets() {
    let user = project("http://127.0.0.1:9");
    let args = [
        "up",
        "--secret",
        "token=hunter2",
        "--secret",
        "extra=1",
        "--dry-run",
    ];
    let text = user.run(&args).ok().stdout;
    assert!(
        text.starts_with("task id  a\n\nspec\n  cpus            2\n"),
        "{text}"
    );
    assert!(!text.contains("hunter2"));
    let json = user.run(&[&args[..], &["-o", "json"]].concat()).ok();
    assert_eq!(json.json()["secrets"], serde_json::json!({}));
    assert_eq!(
        json.json()["required_secrets"],
        serde_json::json!(["extra", "token"])
    );
}

#[test]
fn what_copy_takes_is_said_on_request() {
    let user = project("http://127.0.0.1:9");
    user.write("src/node_modules/x.js", "");
    let args = [
        "up",
        "--secret",
        "token=1",
        "--secret",
        "extra=1",
        "--dry-run",
    ];
    let run = user.run(&args).ok();
    assert!(run.stderr.contains("node_modules"), "{}", run.stderr);
    let run = user.run(&[&args[..], &["--show-copy"]].concat()).ok();
    assert_eq!(
        run.stderr,
        "copy src -> /workspace/app\n  1 file, 8 B (1 skipped by the defaults)\ntotal: 1 file, 8 B (limit 512.0 KB)\n"
    );
}

#[test]
fn outcomes_of_the_wait() {
    let outcome = |states: &'static [(&'static str, &'static str)]| {
        let server = orchestrator(states);
        let user = project(&server.url());
        user.run(&["up", "--secret", "token=1", "--secret", "extra=1"])
    };
    outcome(&[
        ("provisioning", ""),
        (
            "failed",
            "startup script failed in the build phase with exit status 90: boom",
        ),
    ])
    .exits(1)
    .says("environment fuse-a failed to provision: startup script failed in the build phase")
    .says("boom");
    outcome(&[("provisioning", ""), ("destroyed", "")])
        .exits(1)
        .says("destroyed before it was ready");
    outcome(&[(
        "failed",
        "startup script did not complete in time after 30s: waiting",
    )])
    .exits(1)
    .says("failed to provision: startup script did not complete in time after 30s: waiting\n  the startup script runs inside create");
}

#[test]
fn the_task_id_comes_from_the_directory_last() {
    let server = orchestrator(&[("running", "")]);
    let user = User::connected(&server.url(), "tok");
    user.write("My Shop/Fusefile", "version: 1\nrun: \"true\"\n");
    user.run(&["up", "-f", "My Shop/Fusefile"])
        .ok()
        .says("task id my-shop, from the directory");
    user.run(&["up", "-f", "My Shop/Fusefile", "--task-id", "b"])
        .ok();
    let ids: Vec<_> = server
        .seen()
        .into_iter()
        .filter(|seen| seen.line.starts_with("POST"))
        .map(|seen| {
            serde_json::from_str::<serde_json::Value>(&seen.body).unwrap()["task_id"].clone()
        })
        .collect();
    assert_eq!(ids, ["my-shop", "b"]);
}

#[test]
fn the_layer_plan_needs_no_secret_and_sends_nothing() {
    let server = orchestrator(&[]);
    let user = User::connected(&server.url(), "tok");
    let text = "version: 1\nname: a\ncache: {enabled: true}\nbuild: [make all]\nsecrets: [s]\n";
    user.write("Fusefile", text);
    let run = user.run(&["up", "--plan"]).ok();
    let lines: Vec<_> = run.stdout.lines().collect();
    assert!(
        lines[0].starts_with("base key           image:"),
        "{}",
        run.stdout
    );
    assert_eq!(lines[1], "cache              enabled");
    assert!(lines[5].starts_with("│ 0 │ miss   │ "), "{}", run.stdout);
    assert!(lines[5].ends_with(" │ make all │ -    │"), "{}", run.stdout);
    let json = user
        .run(&["up", "--plan", "--no-cache", "-o", "json"])
        .ok()
        .json();
    assert_eq!(json["steps"][0]["status"], "skip");
    assert_eq!(json["steps"][0]["reason"], "caching is not enabled");
    user.write("none/Fusefile", "version: 1\n");
    user.run(&["up", "none", "--plan"])
        .ok()
        .says("no build steps");
    user.run(&["up", "--plan", "--dry-run"]).exits(1);
    user.run(&["up", "--plan", "--from-build", "x"]).exits(1);
    assert_eq!(server.lines(), Vec::<String>::new());
}

#[test]
fn a_snapshot_takes_the_place_of_the_steps() {
    let server = orchestrator(&[("running", "")]);
    let user = project(&server.url());
    user.run(&[
        "up",
        "--from-build",
        "snap-9",
        "--secret",
        "token=1",
        "--secret",
        "extra=1",
    ])
    .ok();
    let sent: serde_json::Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!(sent["seed_snapshot_id"], "snap-9");
    let script = sent["startup_script"].as_str().unwrap();
    assert!(script.ends_with("set +a\n./serve\n"), "{script}");
}

/// An environment that fails its healthcheck, with this message, the first two times that it is read.
pub(crate) fn becoming_healthy(message: &'static str) -> Fake {
    let reads = std::sync::atomic::AtomicUsize::new(0);
    Fake::start(move |seen| match seen.line.as_str() {
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/environments/fuse-a/events" => Some(events(&[("running", "")])),
        "GET /v1/environments/fuse-a" => {
            let mut record: serde_json::Value =
                serde_json::from_str(&environment("running")).unwrap();
            let reads = reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let state = if reads < 2 { "failing" } else { "passing" };
            record["health"] = serde_json::json!({"state": state, "since": "2026-01-15T10:00:00Z", "message": message,
                "failures": reads + 1});
            Some(json(200, &record.to_string()))
        }
        _ => None,
    })
}

#[test]
fn health_is_waited_for_on_request() {
    let server = becoming_healthy("m");
    let user = User::connected(&server.url(), "tok");
    user.write(
        "Fusefile",
        "version: 1\nname: a\nhealthcheck: {exec: [\"true\"]}\n",
    );
    let run = user
        .run(&["up", "--wait-healthy"])
        .ok()
        .says("waiting for the healthcheck, at most 2m\nhealth: failing  (1 consecutive failure)  m\nhealthy\n");
    // That it goes on failing is no news.
    assert_eq!(run.stderr.matches("failing").count(), 1, "{}", run.stderr);
    user.write("none/Fusefile", "version: 1\nname: a\n");
    user.run(&["up", "none", "--wait-healthy"])
        .exits(1)
        .says("has no `healthcheck`");
    user.run(&["up", "--wait-healthy", "--no-wait"]).exits(1);
    user.run(&["up", "--wait-healthy", "--health-timeout", "soon"])
        .exits(1)
        .says("invalid --health-timeout");
}

#[test]
fn an_unhealthy_environment_stays_and_is_named() {
    let server = orchestrator(&[("running", "")]);
    let user = User::connected(&server.url(), "tok");
    user.write(
        "Fusefile",
        "version: 1\nname: a\nhealthcheck: {exec: [\"true\"]}\n",
    );
    user.run(&["up", "--wait-healthy", "--health-timeout", "100ms"])
        .exits(1)
        .says("environment fuse-a runs, but was not healthy within 100ms, and had no verdict");
}

#[test]
fn secrets_come_from_standard_input() {
    let server = orchestrator(&[("running", "")]);
    let user = project(&server.url());
    user.run_with_input(&["up", "--secrets-file", "-"], "token=a\nextra=b\n")
        .ok();
    let path = ["up", "--secret", "extra=1", "--secret-path", "token=-"];
    user.run_with_input(&path, "line 1\nline 2\n").ok();
    let posts: Vec<serde_json::Value> = server
        .seen()
        .into_iter()
        .filter(|seen| seen.line.starts_with("POST"))
        .map(|seen| serde_json::from_str(&seen.body).unwrap())
        .collect();
    assert_eq!(
        posts[0]["secrets"],
        serde_json::json!({"token": "a", "extra": "b"})
    );
    assert_eq!(posts[1]["secrets"]["token"], "line 1\nline 2");
    user.run_with_input(
        &["up", "--secrets-file", "-", "--secret-path", "token=-"],
        "x=1\n",
    )
    .exits(1)
    .says("standard input (-) can hold one secret");
}

const STEPS: &str = "version: 1\nname: a\nbuild: [make all, \"make test\"]\nrun: ./serve\n";

/// An orchestrator that reports the first step, and the second with this exit status.
fn stepping(exit_code: i32) -> Fake {
    Fake::start(move |seen| match seen.line.as_str() {
        "POST /v1/environments" => Some(json(202, &environment("provisioning"))),
        "GET /v1/environments/fuse-a" => Some(json(200, &environment("running"))),
        "GET /v1/environments/fuse-a/events" => {
            let step = |index: u32, exit_code: i32| {
                serde_json::json!({"event": "step", "index": index, "total": 2,
                    "duration_ms": 1500 * index, "exit_code": exit_code})
            };
            let last = match exit_code {
                0 => serde_json::json!({"state": "running"}),
                _ => serde_json::json!({"state": "failed", "error": "startup script failed"}),
            };
            Some(records(&[
                serde_json::json!({"state": "provisioning"}),
                step(1, 0),
                step(2, exit_code),
                last,
            ]))
        }
        _ => None,
    })
}

#[test]
fn steps_are_shown_as_they_end() {
    let server = stepping(0);
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", STEPS);
    let run = user.run(&["up"]).ok().says("placed on host h1");
    let lines: Vec<_> = run.stdout.lines().collect();
    assert!(
        lines[1].starts_with("  RUN    [1/2]   make all "),
        "{}",
        run.stdout
    );
    assert!(lines[1].ends_with("   1.5s"), "{}", run.stdout);
    assert!(
        lines[4].starts_with("  layers  2 steps   setup 4.5s"),
        "{}",
        run.stdout
    );
    // Where the steps stand is sent along; the script itself is what `compile` shows.
    let sent: serde_json::Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    let script = sent["startup_script"].as_str().unwrap();
    let at =
        |i: usize| usize::try_from(sent["startup_steps"]["offsets"][i].as_u64().unwrap()).unwrap();
    assert_eq!(&script[at(0)..at(1)], "make all\n");
    assert_eq!(&script[at(1)..at(2)], "make test\n");
    let compiled = user
        .run(&["compile", "--only", "startup-script"])
        .ok()
        .stdout;
    assert_eq!(script, compiled);

    let json = user.run(&["up", "-o", "json"]).ok();
    assert_eq!(json.json()["id"], "fuse-a");
    let events: Vec<serde_json::Value> = json
        .stderr
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events.len(), 4, "{}", json.stderr);
    assert_eq!(events[2]["event"], "step");

    let Some(run) = user.run_on_terminal(&["up"]) else {
        return;
    };
    let run = run.ok();
    assert!(run.stdout.contains("[2/2]   make test"), "{}", run.stdout);
    assert!(run.stdout.contains("layers  2 steps"), "{}", run.stdout);
}

#[test]
fn a_failed_step_is_named_with_the_command_that_shows_it() {
    let server = stepping(7);
    let user = User::connected(&server.url(), "tok");
    user.write("Fusefile", STEPS);
    let run = user
        .run(&["up"])
        .exits(1)
        .says("environment fuse-a failed to provision: startup script failed")
        .says("build[1] ended with exit code 7.")
        .says("  fuse environment exec fuse-a --timeout 10m --shell 'cd '\\''/workspace'\\'' && make test'");
    assert!(
        run.stdout.contains("  FAILED [2/2]   make test"),
        "{}",
        run.stdout
    );
    let error = user.run(&["up", "-o", "json"]).exits(1).error();
    assert_eq!(error["code"], "provision_failed");
}
