//! `up`.

use crate::fake::{Fake, environment, error, events, json};
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
