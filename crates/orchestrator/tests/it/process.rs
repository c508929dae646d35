//! The program itself: flags, refusals, signals, a kill in the middle.

use fuse_testkit::fake_agent::{FakeAgent, Step, TOKEN};
use serde_json::{Value, json};

use crate::program::{KEY, Program, command, wait};

#[test]
fn version_and_help() {
    let output = command().arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "orchestrator dev\n"
    );
    let help = String::from_utf8(command().arg("--help").output().unwrap().stdout).unwrap();
    for name in [
        "ORCH_LISTEN",
        "TOKEN_ENCRYPTION_KEY",
        "--write-timeout",
        "DATABASE_URL",
    ] {
        assert!(help.contains(name), "{name}");
    }
}

#[test]
fn refusals_are_one_message_with_the_variable() {
    let dir = tempfile::tempdir().unwrap();
    let missing = format!("sqlite://{}/nope/fuse.db", dir.path().display());
    for (env, part) in [
        (vec![("TOKEN_ENCRYPTION_KEY", "x")], "TOKEN_ENCRYPTION_KEY"),
        (
            vec![("ORCH_REQUIRE_AUTH", "true")],
            "ORCH_AUTH_TOKEN, TOKEN_ENCRYPTION_KEY, DATABASE_URL",
        ),
        (vec![("DATABASE_URL", "mysql://x")], "DATABASE_URL"),
        (vec![("DATABASE_URL", missing.as_str())], "DATABASE_URL"),
        (vec![("ORCH_LISTEN", "127.0.0.1:notaport")], "ORCH_LISTEN"),
        (
            vec![
                ("ORCH_TLS_CERT", "/nonexistent"),
                ("ORCH_TLS_KEY", "/nonexistent"),
            ],
            "ORCH_TLS_CERT",
        ),
    ] {
        let output = command().envs(env).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let last = text.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("orchestrator: ") && last.contains(part),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_port_in_use_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = command().env("ORCH_LISTEN", &address).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains(&address) && text.contains("ORCH_LISTEN"),
        "{text}"
    );
}

#[tokio::test]
async fn a_second_process_on_one_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/fuse.db", dir.path().display());
    let first = Program::start(&[("DATABASE_URL", &url), ("ORCH_AUTH_TOKEN", "master")]);
    let output = command()
        .envs([
            ("DATABASE_URL", url.as_str()),
            ("ORCH_LISTEN", "127.0.0.1:0"),
        ])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("is in use by"), "{text}");
    assert_eq!(
        first.call(reqwest::Method::GET, "/v1/hosts", None).await.0,
        200
    );
}

#[tokio::test]
async fn a_signal_drains_and_ends_in_good_order() {
    let mut program = Program::start(&[("ORCH_AUTH_TOKEN", "master")]);
    let (status, _) = program
        .call(
            reqwest::Method::POST,
            "/v1/environments",
            Some(json!({"task_id": "a"})),
        )
        .await;
    assert_eq!(status, 202);
    let stream = program
        .http
        .get(format!("{}/v1/environments/fuse-a/events", program.base))
        .bearer_auth("master")
        .send()
        .await
        .unwrap();
    program.signal("-TERM");
    // The open stream ends instead of holding the shutdown up.
    assert!(stream.text().await.unwrap().contains("fuse-a"));
    let (status, said) = program.ended();
    assert_eq!(status, Some(0));
    assert!(said.contains("stopped"), "{said}");
}

#[tokio::test]
async fn a_kill_in_the_middle_of_a_create_is_recovered_from() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/fuse.db", dir.path().display());
    let env = [
        ("DATABASE_URL", url.as_str()),
        ("ORCH_AUTH_TOKEN", "master"),
        ("TOKEN_ENCRYPTION_KEY", KEY),
        ("ORCH_RECONCILE_INTERVAL_SECONDS", "1"),
    ];
    let agent = FakeAgent::start().await.unwrap();
    let mut program = Program::start(&env);
    let host = json!({
        "id": "h", "url": agent.url(), "token": TOKEN, "capacity": {"vm_count": 9}
    });
    assert_eq!(
        program
            .call(reqwest::Method::POST, "/v1/hosts", Some(host))
            .await
            .0,
        201
    );
    let create = |task: &str| Some(json!({ "task_id": task }));
    program
        .call(reqwest::Method::POST, "/v1/environments", create("done"))
        .await;
    let running = |answer: &(u16, Value)| answer.1["state"] == "running";
    wait(&program, "/v1/environments/fuse-done", running).await;
    let mut gate = agent.hold(Step::Upload);
    program
        .call(reqwest::Method::POST, "/v1/environments", create("cut"))
        .await;
    gate.reached().await;
    program.signal("-KILL");
    program.child.wait().unwrap();
    gate.open();
    drop(program);

    let program = Program::start(&env);
    wait(&program, "/v1/environments/fuse-cut", |answer| {
        answer.0 == 404
    })
    .await;
    let (_, task) = program
        .call(reqwest::Method::GET, "/v1/tasks/cut", None)
        .await;
    assert_eq!(
        task["last_error"],
        "provisioning interrupted by orchestrator crash"
    );
    let (_, kept) = program
        .call(reqwest::Method::GET, "/v1/environments/fuse-done", None)
        .await;
    assert_eq!(kept["state"], "running");
    assert_eq!(agent.vms(), ["fuse-done"]);
}
