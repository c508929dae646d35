//! What environments print, and what is kept of creates that failed.

use fuse_testkit::fake_agent::{FakeAgent, Step, printing};
use fuse_wire_host::{CreateTimings, ExecResponse, FailedCreate, LogSource};
use serde_json::json;

use crate::support::{Options, Orchestrator, with_agent};

const SECRET: &str = "hunter2hunter2";

/// An answer that is read piece by piece.
struct Followed(reqwest::Response);

impl Followed {
    async fn open(fuse: &Orchestrator, path: &str) -> Self {
        let response = fuse.request(reqwest::Method::GET, path).send().await;
        let response = response.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        Self(response)
    }

    /// Reads until `text` has come.
    async fn until(&mut self, text: &str) {
        let mut read = String::new();
        let reading = async {
            while !read.contains(text) {
                let chunk = self.0.chunk().await.unwrap();
                let chunk = chunk.unwrap_or_else(|| panic!("it ended with {read:?}"));
                read.push_str(std::str::from_utf8(&chunk).unwrap());
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(20), reading).await;
        waited.unwrap_or_else(|_| panic!("{text:?} never came"));
    }

    /// Everything to the end.
    async fn rest(self) -> String {
        self.0.text().await.unwrap()
    }
}

#[tokio::test]
async fn console_and_guest_agent_are_read_and_followed_without_secrets() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let body = json!({
        "task_id": "a", "secrets": {"S": SECRET},
        "manifest_inline": "eyJtYWNoaW5lIjp7ImVudiI6eyJLIjp7InNlY3JldCI6IlMifX19fQ==",
    });
    fuse.create(&body).await.is(201);
    agent.print(
        "fuse-a",
        LogSource::Console,
        "Linux booted\nwith hunter2hun",
    );
    agent.print("fuse-a", LogSource::Agent, "[    1.0] the guest is up\n");
    let logs = "/v1/environments/fuse-a/logs";
    let answer = fuse.get(&format!("{logs}?source=agent")).await;
    assert_eq!(answer.text, "[    1.0] the guest is up\n");
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    let mut console = Followed::open(&fuse, &format!("{logs}?source=console&follow=true")).await;
    console.until("booted\nwith ").await;
    agent.print("fuse-a", LogSource::Console, "ter2 in it\n");
    console.until("[REDACTED] in it\n").await;
    // It ends with the VM.
    assert_eq!(fuse.delete("/v1/environments/fuse-a").await.status, 204);
    assert_eq!(console.rest().await, "");
    fuse.get(logs)
        .await
        .is_error(404, "not_found", "vm fuse-a not found");
    fuse.stop().await;
}

#[tokio::test]
async fn a_startup_script_is_followed_while_it_runs() {
    let (fuse, agent) = with_agent(Options::default()).await;
    agent.on_exec(|argv| {
        let mark = argv[2]
            .split_once("\\036' ")
            .map(|(_, rest)| rest[..32].to_owned());
        printing(&format!("built\n\u{1e}{}\u{1e}runs\n", mark.unwrap()))
    });
    let hold = agent.hold_ends();
    let script = "trap 'exit 90' EXIT\nmake\ntrap - EXIT\nserve\n";
    let body = json!({"task_id": "a", "startup_script": script});
    let create = fuse.request(reqwest::Method::POST, "/v1/environments");
    let create = create.header("prefer", "respond-async").json(&body);
    assert_eq!(Orchestrator::send(create).await.status, 202);
    let logs = "/v1/environments/fuse-a/logs?follow=true";
    let mut all = Followed::open(&fuse, logs).await;
    all.until("built\nruns\n").await;
    let build = Followed::open(&fuse, &format!("{logs}&phase=build")).await;
    assert!(
        fuse.get("/v1/tasks/a")
            .await
            .is(200)
            .get("output")
            .is_none()
    );
    drop(hold);
    // Both end with the script.
    assert_eq!(all.rest().await, "");
    assert_eq!(build.rest().await, "built\n");
    fuse.until("/v1/environments/fuse-a", |a| a.json["state"] == "running")
        .await;
    assert_eq!(fuse.get("/v1/tasks/a/logs?phase=run").await.text, "runs\n");
    assert_eq!(fuse.get("/v1/tasks/a/logs").await.text, "built\nruns\n");
    let output = fuse.get("/v1/tasks/a").await.is(200)["output"].clone();
    assert_eq!(output["stdout"], "built\nruns\n");
    fuse.stop().await;
}

#[tokio::test]
async fn what_cannot_be_read_is_said() {
    let (fuse, agent) = with_agent(Options::default()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let logs = "/v1/environments/fuse-a/logs";
    for (query, text) in [
        ("source=x", "source must be startup, console or agent"),
        ("phase=x", "phase must be build or run"),
        ("source=agent&phase=run", "phase is for source=startup"),
        ("follow=x", "follow must be true or false"),
    ] {
        let answer = fuse.get(&format!("{logs}?{query}")).await;
        answer.is_error(400, "invalid_argument", text);
    }
    // Without a script there is nothing, not even for a follower.
    assert_eq!(fuse.get(&format!("{logs}?follow=true")).await.text, "");
    agent.fail(Step::Logs, 1, 404, "not found");
    fuse.get(&format!("{logs}?source=console")).await.is_error(
        501,
        "unimplemented",
        "logs not supported by provider",
    );
    agent.lose_vm("fuse-a");
    fuse.get(&format!("{logs}?source=console")).await.is_error(
        409,
        "conflict",
        "vm not running: the host of vm fuse-a does not have it",
    );
    let kept = fuse.get("/v1/tasks/a/logs?source=console").await;
    assert_eq!((kept.status, kept.code()), (404, "not_found"));
    assert!(kept.message().contains("24 hours"), "{}", kept.text);
    fuse.stop().await;
}

fn failing_script(agent: &FakeAgent) {
    agent.on_exec(|_| ExecResponse {
        exit_code: 2,
        stderr: format!("no {SECRET} here\n").into_bytes(),
        ..ExecResponse::default()
    });
}

#[tokio::test]
async fn a_failed_script_leaves_console_log_and_timings() {
    let (fuse, agent) = with_agent(Options::default()).await;
    failing_script(&agent);
    agent.print("fuse-a", LogSource::Console, &format!("panic: {SECRET}\n"));
    agent.print("fuse-a", LogSource::Agent, "mounted\n");
    let body = json!({"task_id": "a", "startup_script": "x", "secrets": {"S": SECRET}});
    assert_eq!(fuse.create(&body).await.status, 400);
    assert!(agent.vms().is_empty(), "it was read before the VM went");
    let failure = fuse.get("/v1/tasks/a").await.is(200)["failure"].clone();
    assert_eq!(failure["step"], "script");
    assert_eq!(
        failure["placement"],
        json!({"host_id": "h", "policy": "spread", "candidates": 1})
    );
    let steps: Vec<&str> = failure["timings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|timing| timing["step"].as_str().unwrap())
        .collect();
    assert_eq!(steps, ["boot", "upload", "script"]);
    assert_eq!(failure["agent_bytes"], 8);
    let logs = "/v1/tasks/a/logs";
    assert_eq!(
        fuse.get(&format!("{logs}?source=console")).await.text,
        "panic: [REDACTED]\n"
    );
    assert_eq!(
        fuse.get(&format!("{logs}?source=agent")).await.text,
        "mounted\n"
    );
    assert_eq!(fuse.get(logs).await.text, "no [REDACTED] here\n");
    // The next attempt has nothing of it.
    agent.on_exec(|_| ExecResponse::default());
    fuse.create(&body).await.is(201);
    assert!(
        fuse.get("/v1/tasks/a")
            .await
            .is(200)
            .get("failure")
            .is_none()
    );
    fuse.stop().await;
}

#[tokio::test]
async fn a_failed_boot_leaves_what_the_host_remembers() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let remember = |owner: &str| {
        agent.remember_failure(FailedCreate {
            vm_id: "fuse-a".to_owned(),
            owner: Some(owner.to_owned()),
            timings_ms: CreateTimings {
                queued: 5.0,
                steps: [("spawn".to_owned(), 2.5)].into(),
                ..CreateTimings::default()
            },
            console: "Kernel panic\n".to_owned(),
            ..FailedCreate::default()
        });
    };
    let fail = async || {
        agent.fail(Step::Create, 1, 500, "the guest did not answer");
        assert_eq!(fuse.create(&json!({"task_id": "a"})).await.status, 500);
        fuse.get("/v1/tasks/a").await.is(200)["failure"].clone()
    };
    let fleet = fuse.control.store().fleet_id().to_string();
    remember(&fleet);
    let failure = fail().await;
    assert_eq!(failure["step"], "boot");
    assert_eq!(
        failure["timings"][1],
        json!({"step": "host.spawn", "duration_ms": 2.5})
    );
    assert_eq!(
        failure["timings"][2],
        json!({"step": "host.queued", "duration_ms": 5.0})
    );
    let console = "/v1/tasks/a/logs?source=console";
    assert_eq!(fuse.get(console).await.text, "Kernel panic\n");
    // What another fleet's VM of that name printed is not ours to show.
    remember("another fleet");
    assert_eq!(fail().await["console_bytes"], 0);
    assert_eq!(fuse.get(console).await.text, "");
    fuse.stop().await;
}

#[tokio::test]
async fn a_refused_placement_keeps_which_rule_refused() {
    let (fuse, _agent) = with_agent(Options::default()).await;
    let body = json!({"task_id": "a", "spec": {"cpus": 1000}});
    assert_eq!(fuse.create(&body).await.status, 503);
    let failure = fuse.get("/v1/tasks/a").await.is(200)["failure"].clone();
    assert_eq!(failure["step"], "placement");
    assert_eq!(
        failure["placement"]["rejected"],
        json!({"rejected_capacity": "1"})
    );
    fuse.stop().await;
}
