//! What becomes of environments when the orchestrator stops in the middle and another
//! one opens the same store.

use std::time::Duration;

use fuse_control::Settings;
use fuse_testkit::fake_agent::{FakeAgent, Step};
use fuse_wire_host::LogSource;
use serde_json::{Value, json};

use crate::support::{Options, Orchestrator};

pub(crate) fn options(dir: &tempfile::TempDir) -> Options {
    Options {
        settings: Settings {
            reconcile_interval: Duration::from_millis(100),
            host_check_interval: Duration::from_millis(100),
            ..Settings::default()
        },
        ..Options::file(dir.path())
    }
}

/// Runs an orchestrator on a runtime of its own, does `work` with it until a call of
/// `step` is held, and then ends it the way a crash does: every task of it is dropped
/// where it stands.
pub(crate) async fn crash_in_the_middle<F>(
    dir: &tempfile::TempDir,
    agent: &FakeAgent,
    step: Step,
    work: impl FnOnce(Orchestrator) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let fuse = runtime
        .spawn(Orchestrator::with(options(dir)))
        .await
        .unwrap();
    fuse.register("h", agent).await;
    let mut gate = agent.hold(step);
    let working = runtime.spawn(work(fuse));
    gate.reached().await;
    working.abort();
    tokio::task::spawn_blocking(move || drop(runtime))
        .await
        .unwrap();
    gate.open();
}

/// A crash while a create is at `step`.
async fn interrupted_at(dir: &tempfile::TempDir, agent: &FakeAgent, step: Step, body: Value) {
    crash_in_the_middle(dir, agent, step, |fuse| async move {
        fuse.create(&body).await;
    })
    .await;
}

#[tokio::test]
async fn running_environments_survive_a_restart() {
    let (dir, agent) = (
        tempfile::tempdir().unwrap(),
        FakeAgent::start().await.unwrap(),
    );
    let fuse = Orchestrator::with(options(&dir)).await;
    fuse.register("h", &agent).await;
    let before = fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.stop().await;

    let fuse = Orchestrator::with(options(&dir)).await;
    fuse.until("/ready", |answer| answer.status == 200).await;
    assert_eq!(fuse.get("/v1/environments/fuse-a").await.is(200), before);
    assert_eq!(
        fuse.get("/v1/tasks/a").await.is(200)["run_status"],
        "running"
    );
    let answer = fuse
        .post(
            "/v1/environments/fuse-a?action=exec",
            &json!({"cmd": ["true"]}),
        )
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(agent.vms(), ["fuse-a"]);
    // What came later was not recovered.
    fuse.create(&json!({"task_id": "b"})).await.is(201);
    fuse.until("/v1/audit?type=vm.recovered", |answer| {
        answer.text.contains("fuse-a")
    })
    .await;
    let found = json!([{"entity": "vm fuse-a", "payload": {"host_id": "h", "state": "running"}}]);
    assert_eq!(fuse.audit("vm.recovered").await, found);
    fuse.stop().await;
}

#[tokio::test]
async fn a_create_whose_guest_agent_serves_is_adopted() {
    let (dir, agent) = (
        tempfile::tempdir().unwrap(),
        FakeAgent::start().await.unwrap(),
    );
    let body = json!({"task_id": "a", "expose": [{"port": 80, "as": "web"}]});
    interrupted_at(&dir, &agent, Step::StartAgent, body).await;
    agent.serve("fuse-a");
    let fuse = Orchestrator::with(options(&dir)).await;
    let adopted = fuse
        .until("/v1/environments/fuse-a", |answer| {
            answer.json["state"] == "running"
        })
        .await;
    assert_eq!(adopted.json["url"], "203.0.113.1:19551");
    assert_eq!(adopted.json["endpoints"][0]["as"], "web");
    assert_eq!(
        fuse.get("/v1/tasks/a").await.is(200)["run_status"],
        "running"
    );
    let payload = json!({"host_id": "h", "state": "provisioning"});
    let adopted = json!([{"entity": "vm fuse-a", "payload": payload}]);
    assert_eq!(fuse.audit("vm.recovered").await, adopted);
    // Fresh credentials, because those of the interrupted create were not stored.
    let id = fuse_model::EnvironmentId::new("fuse-a");
    let token = fuse
        .control
        .store()
        .environment_guest_token(&id)
        .await
        .unwrap()
        .unwrap();
    let file = agent.file("fuse-a", "/fuse/auth-token").unwrap();
    assert_eq!(token.expose().as_bytes(), file);
    fuse.stop().await;
}

#[tokio::test]
async fn a_create_that_got_less_far_is_undone() {
    for step in [Step::Create, Step::Upload, Step::Exec] {
        let (dir, agent) = (
            tempfile::tempdir().unwrap(),
            FakeAgent::start().await.unwrap(),
        );
        let body = json!({"task_id": "a", "startup_script": "true", "spec": {"cpus": 2}});
        agent.print("fuse-a", LogSource::Console, "booted\n");
        interrupted_at(&dir, &agent, step, body).await;
        let fuse = Orchestrator::with(options(&dir)).await;
        fuse.until("/v1/environments/fuse-a", |answer| answer.status == 404)
            .await;
        let task = fuse.get("/v1/tasks/a").await.is(200);
        assert_eq!(task["run_status"], "failed", "{step:?}");
        if step != Step::Create {
            // Its VM was there, and what it printed is still to be had.
            assert_eq!(task["failure"]["step"], "interrupted", "{step:?}: {task}");
            let console = fuse.get("/v1/tasks/a/logs?source=console").await;
            assert_eq!(console.text, "booted\n", "{step:?}");
        }
        assert_eq!(
            task["last_error"],
            "provisioning interrupted by orchestrator crash"
        );
        assert_eq!(
            fuse.get("/v1/hosts/h").await.is(200)["allocated"]["cpus"],
            0
        );
        // What the agent finished afterwards is an orphan, and goes too.
        while !agent.vms().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fuse.create(&json!({"task_id": "a"})).await.is(201);
        fuse.stop().await;
    }
}

#[tokio::test]
async fn an_interrupted_destroy_is_continued() {
    let (dir, agent) = (
        tempfile::tempdir().unwrap(),
        FakeAgent::start().await.unwrap(),
    );
    crash_in_the_middle(&dir, &agent, Step::Delete, |fuse| async move {
        fuse.create(&json!({"task_id": "a"})).await.is(201);
        fuse.delete("/v1/environments/fuse-a").await;
    })
    .await;
    assert_eq!(agent.vms(), ["fuse-a"]);

    let fuse = Orchestrator::with(options(&dir)).await;
    fuse.until("/v1/environments/fuse-a", |answer| answer.status == 404)
        .await;
    assert!(agent.vms().is_empty());
    fuse.stop().await;
}

#[tokio::test]
async fn an_unreachable_host_keeps_its_interrupted_create() {
    let (dir, mut agent) = (
        tempfile::tempdir().unwrap(),
        FakeAgent::start().await.unwrap(),
    );
    interrupted_at(&dir, &agent, Step::StartAgent, json!({"task_id": "a"})).await;
    agent.serve("fuse-a");
    agent.stop().await;
    let fuse = Orchestrator::with(options(&dir)).await;
    fuse.until("/v1/hosts/h", |answer| {
        answer.json["agent"]["reachable"] == false
    })
    .await;
    let record = fuse.get("/v1/environments/fuse-a").await.is(200);
    assert_eq!(record["state"], "provisioning");
    agent.start_again().await.unwrap();
    fuse.until("/v1/environments/fuse-a", |answer| {
        answer.json["state"] == "running"
    })
    .await;
    fuse.stop().await;
}

#[tokio::test]
async fn a_vm_that_vanished_during_the_restart_is_told() {
    let (dir, agent) = (
        tempfile::tempdir().unwrap(),
        FakeAgent::start().await.unwrap(),
    );
    let fuse = Orchestrator::with(options(&dir)).await;
    fuse.register("h", &agent).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.stop().await;
    agent.lose_vm("fuse-a");
    let fuse = Orchestrator::with(options(&dir)).await;
    fuse.until("/v1/environments/fuse-a", |answer| answer.status == 404)
        .await;
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(
        task["last_error"],
        "vm missing from provider during recovery"
    );
    fuse.stop().await;
}

#[tokio::test]
async fn stub_environments_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let fuse = Orchestrator::with(options(&dir)).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.stop().await;
    let fuse = Orchestrator::with(options(&dir)).await;
    fuse.until("/ready", |answer| answer.status == 200).await;
    assert_eq!(
        fuse.get("/v1/environments/fuse-a").await.is(200)["state"],
        "running"
    );
    assert_eq!(fuse.delete("/v1/environments/fuse-a").await.status, 204);
    fuse.stop().await;
}
