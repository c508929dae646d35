//! A database that is away for a while, and one whose clock is set while environments run.

use std::time::Duration;

use fuse_control::Settings;
use fuse_model::now;
use fuse_testkit::{
    fake_agent::{FakeAgent, Step},
    until,
};
use jiff::SignedDuration;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    postgres::server,
    support::{Options, Orchestrator, with_agent},
};

/// Nothing here takes as long; waiting longer means that it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

const AWAY: &str = "the state store does not answer, try again in a moment";

fn options(database: String) -> Options {
    Options {
        database: Some(database),
        settings: Settings {
            reconcile_interval: Duration::from_millis(100),
            host_check_interval: Duration::from_millis(100),
            task_stuck_timeout: Duration::from_secs(3600),
            default_idle_timeout: Duration::from_secs(3600),
            ..Settings::default()
        },
        ..Options::default()
    }
}

async fn cycles(agent: &FakeAgent, count: usize) {
    let lists = || agent.calls().iter().filter(|call| *call == "list").count();
    let enough = lists() + count;
    until("cycles of the reconcile loop", PATIENCE, || async {
        anyhow::ensure!(lists() >= enough, "{} of {enough}", lists());
        Ok(())
    })
    .await
    .unwrap();
}

async fn asks(fuse: &Orchestrator, method: Method, path: &str, body: Option<&Value>) {
    let request = fuse.request(method.clone(), path);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    let answer = Orchestrator::send(request).await;
    assert_eq!(
        (answer.status, answer.code(), answer.message()),
        (503, "unavailable", AWAY),
        "{method} {path}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_costs_answers_and_nothing_else() {
    let Some(server) = server() else { return };
    let (fuse, agent) = with_agent(options(server.database().unwrap())).await;
    for task in ["stays", "lost", "ends"] {
        fuse.create(&json!({"task_id": task})).await.is(201);
    }
    cycles(&agent, 2).await;
    let fleet_id = fuse.control.store().fleet_id().to_string();
    let deletes = agent.count(Step::Delete, "fuse-ends");

    server.crash().unwrap();
    // Whoever asks is told, in every way of asking, and the process says that it is not ready.
    for _ in 0..3 {
        let body = json!({"task_id": "new"});
        asks(&fuse, Method::POST, "/v1/environments", Some(&body)).await;
        asks(&fuse, Method::GET, "/v1/environments", None).await;
        asks(&fuse, Method::GET, "/v1/environments/fuse-stays", None).await;
        asks(&fuse, Method::DELETE, "/v1/environments/fuse-ends", None).await;
        let exec = json!({"cmd": ["true"]});
        let path = "/v1/environments/fuse-stays?action=exec";
        asks(&fuse, Method::POST, path, Some(&exec)).await;
    }
    fuse.until("/ready", |answer| answer.status == 503).await;
    assert_eq!(fuse.get("/health").await.status, 200);
    // What happens on the host meanwhile waits; nothing is done without the table.
    agent.lose_vm("fuse-lost");
    agent.add_vm("fuse-orphan", Some(&fleet_id));
    assert_eq!(agent.count(Step::Delete, "fuse-ends"), deletes);
    assert_eq!(agent.vms(), ["fuse-ends", "fuse-orphan", "fuse-stays"]);

    server.run().unwrap();
    fuse.until("/ready", |answer| answer.status == 200).await;
    fuse.until("/v1/environments/fuse-lost", |answer| answer.status == 404)
        .await;
    until("the orphan's end", PATIENCE, || async {
        anyhow::ensure!(
            agent.vms() == ["fuse-ends", "fuse-stays"],
            "{:?}",
            agent.vms()
        );
        Ok(())
    })
    .await
    .unwrap();
    for task in ["stays", "ends"] {
        let record = fuse.get(&format!("/v1/environments/fuse-{task}")).await;
        assert_eq!(record.is(200)["state"], "running", "{task}");
    }
    // The refused create left nothing in its way, and the refused destroy can be repeated.
    fuse.create(&json!({"task_id": "new"})).await.is(201);
    assert_eq!(fuse.delete("/v1/environments/fuse-ends").await.status, 204);
    assert_eq!(agent.vms(), ["fuse-new", "fuse-stays"]);
    let host = fuse.get("/v1/hosts/h").await.is(200);
    assert_eq!(host["allocated"]["vm_count"], 2);
    fuse.stop().await;
}

/// The fleet's clock is the database's: this one can be set.
const SETTABLE: &str = "\
CREATE TABLE ahead (by INTERVAL);
INSERT INTO ahead VALUES ('0');
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + (SELECT by FROM public.ahead)';
DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database());
END $$;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_ends_nothing_early_and_nothing_late() {
    let Some(server) = server() else { return };
    let database = server.database().unwrap();
    server.query(&database, SETTABLE).unwrap();
    let (fuse, agent) = with_agent(options(database.clone())).await;
    let set = async |hours: i64| {
        let sql = format!("UPDATE ahead SET by = '{hours} hours'");
        server.query(&database, &sql).unwrap();
        until("the fleet's clock to be set", PATIENCE, || async {
            let ahead = fuse.control.store().now().duration_since(now());
            let off = (ahead - SignedDuration::from_hours(hours)).abs();
            anyhow::ensure!(off < SignedDuration::from_mins(1), "{ahead} ahead");
            Ok(())
        })
        .await
        .unwrap();
    };
    fuse.create(&json!({"task_id": "before"})).await.is(201);
    cycles(&agent, 2).await;
    // Forward, past every limit: two strikes would be out by now.
    set(5).await;
    cycles(&agent, 6).await;
    fuse.create(&json!({"task_id": "after"})).await.is(201);
    // Its time is over when the clock has been put back to long before it was made.
    let short = json!({"task_id": "short", "spec": {"max_runtime_seconds": 8}});
    fuse.create(&short).await.is(201);
    set(-5).await;
    fuse.until("/v1/environments/fuse-short", |answer| answer.status == 404)
        .await;
    let task = fuse.get("/v1/tasks/short").await.is(200);
    let text = task["last_error"].as_str().unwrap();
    assert!(text.starts_with("task stuck: runtime "), "{text}");
    cycles(&agent, 6).await;
    for task in ["before", "after"] {
        let record = fuse.get(&format!("/v1/environments/fuse-{task}")).await;
        assert_eq!(record.is(200)["state"], "running", "{task}");
    }
    assert_eq!(agent.vms(), ["fuse-after", "fuse-before"]);
    fuse.stop().await;
}
