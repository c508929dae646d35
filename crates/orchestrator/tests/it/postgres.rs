//! The same surface on a real PostgreSQL: what SQLite would let pass.

use fuse_testkit::{
    SkipReason,
    postgres::{Durability, Postgres},
};
use fuse_wire_host::ExecResponse;
use serde_json::json;

use crate::support::{Answer, Options, Orchestrator, with_agent};

pub(crate) fn server() -> Option<Postgres> {
    match Postgres::start(Durability::Careless) {
        Ok(server) => Some(server),
        Err(error) if error.is::<SkipReason>() => {
            fuse_testkit::report_skip("postgres", &error.to_string());
            None
        }
        Err(error) => panic!("{error:#}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_events_and_odd_bytes() {
    let Some(server) = server() else { return };
    let options = Options {
        database: Some(server.database().unwrap()),
        ..Options::default()
    };
    let (fuse, agent) = with_agent(options).await;

    // Text with NUL, which PostgreSQL does not take, reaches neither table nor error.
    agent.on_exec(|_| ExecResponse {
        exit_code: 3,
        stdout: b"a\0b".to_vec(),
        stderr: b"bad\0thing".to_vec(),
        ..ExecResponse::default()
    });
    let request = json!({"task_id": "a", "startup_script": "x"});
    fuse.create(&request).await.is_error(
        400,
        "invalid_argument",
        "startup script failed in the run phase with exit status 3: bad\u{fffd}thing",
    );
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(task["output"]["stdout"], "a\u{fffd}b");
    for path in [
        "/v1/environments?task_id=%00",
        "/v1/environments?host_id=a%00b",
    ] {
        assert_eq!(fuse.get(path).await.is(200), json!({"environments": []}));
    }
    for path in ["/v1/environments/%00", "/v1/tasks/a%00", "/v1/hosts/%00"] {
        assert_eq!(fuse.get(path).await.status, 404, "{path}");
    }
    let nul = json!({"task_id": "a\0", "spec": {}});
    assert_eq!(fuse.create(&nul).await.status, 400);
    let nul = json!({"task_id": "a", "spec": {"region": "x\0"}});
    assert_eq!(fuse.create(&nul).await.status, 400);

    agent.on_exec(|_| ExecResponse::default());
    fuse.create(&request).await.is(201);
    let mut events = fuse.events("fuse-a", None).await;
    assert_eq!(events.next().await.unwrap()["state"], "running");
    assert_eq!(fuse.delete("/v1/environments/fuse-a").await.status, 204);
    assert_eq!(events.states().await, ["destroying", "destroyed"]);
    fuse.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_orchestrators_share_one_database() {
    let Some(server) = server() else { return };
    let url = server.database().unwrap();
    let options = || Options {
        database: Some(url.clone()),
        ..Options::default()
    };
    let (first, agent) = with_agent(options()).await;
    let second = Orchestrator::with(options()).await;
    first.create(&json!({"task_id": "a"})).await.is(201);
    assert_eq!(
        second.get("/v1/environments/fuse-a").await.is(200)["state"],
        "running"
    );
    let again = second.create(&json!({"task_id": "a"})).await;
    assert_eq!((again.status, again.code()), (409, "conflict"));
    // A stream on one replica sees what another one does.
    let mut events = first.events("fuse-a", None).await;
    assert_eq!(events.next().await.unwrap()["state"], "running");
    assert_eq!(second.delete("/v1/environments/fuse-a").await.status, 204);
    assert_eq!(events.states().await, ["destroying", "destroyed"]);
    assert!(agent.vms().is_empty());
    first.until("/ready", |answer| answer.status == 200).await;
    second.until("/ready", |answer| answer.status == 200).await;
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_changes_nothing() {
    let Some(server) = server() else { return };
    let url = server.database().unwrap();
    let options = || Options {
        database: Some(url.clone()),
        ..Options::default()
    };
    let create = json!({
        "task_id": "a", "secrets": {"K": "v"}, "expose": [{"port": 80, "as": "web"}]
    });
    async fn keyed(fuse: &Orchestrator, body: &serde_json::Value) -> Answer {
        let request = fuse.request(reqwest::Method::POST, "/v1/environments");
        Orchestrator::send(request.header("Idempotency-Key", "once").json(body)).await
    }
    let (fuse, agent) = with_agent(options()).await;
    let made = keyed(&fuse, &create).await.is(201);
    let mut events = fuse.events("fuse-a", None).await;
    events.next().await.unwrap();
    let mut fleet = fuse.fleet_events(None).await;
    fuse.create(&json!({"task_id": "b"})).await.is(201);
    let seen = fleet.next().await.unwrap();
    let seen = seen["id"].as_str().unwrap();
    let (host, task) = (
        fuse.get("/v1/hosts/h").await.is(200),
        fuse.get("/v1/tasks/a").await.is(200),
    );
    fuse.stop().await;

    let fuse = Orchestrator::with(options()).await;
    fuse.until("/ready", |answer| answer.status == 200).await;
    assert_eq!(fuse.get("/v1/environments/fuse-a").await.is(200), made);
    assert_eq!(fuse.get("/v1/tasks/a").await.is(200), task);
    let allocated = &fuse.get("/v1/hosts/h").await.is(200)["allocated"];
    assert_eq!(*allocated, host["allocated"]);
    // The same key gives the same answer, and the same cursor goes on.
    let again = keyed(&fuse, &create).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.is(201), made);
    let exec = json!({"cmd": ["true"]});
    let answer = fuse
        .post("/v1/environments/fuse-a?action=exec", &exec)
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(fuse.delete("/v1/environments/fuse-a").await.status, 204);
    let mut fleet = fuse.fleet_events(Some(seen)).await;
    for state in ["running", "destroying", "destroyed"] {
        assert_eq!(fleet.next().await.unwrap()["state"], state);
    }
    assert_eq!(agent.vms(), ["fuse-b"]);
    fuse.stop().await;
}
