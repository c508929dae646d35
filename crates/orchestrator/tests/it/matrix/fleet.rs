//! Two hosts, and orchestrators that are processes: one on a file, or any number of replicas on
//! PostgreSQL.

use std::{sync::Arc, time::Duration};

use fuse_testkit::{
    fake_agent::{FakeAgent, TOKEN},
    postgres::Postgres,
};
use reqwest::Method;
use serde_json::json;

use super::operation::Operation;
use crate::program::{KEY, Program, wait};

/// Nothing here takes as long; waiting longer means that it never comes.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) struct Fleet {
    keeper: Keeper,
    pub(crate) agents: [FakeAgent; 2],
}

/// Who keeps the table.
enum Keeper {
    File(tempfile::TempDir),
    Postgres(Arc<Postgres>, String),
}

impl Fleet {
    /// On a file.
    pub(crate) async fn new() -> Self {
        Self::with(Keeper::File(tempfile::tempdir().unwrap())).await
    }

    /// On a database of its own.
    pub(super) async fn on(server: &Arc<Postgres>) -> Self {
        let url = server.database().unwrap();
        Self::with(Keeper::Postgres(server.clone(), url)).await
    }

    async fn with(keeper: Keeper) -> Self {
        let start = async || {
            let agent = FakeAgent::start().await.unwrap();
            agent.serve_surfaces();
            agent.on_exec(|argv| fuse_wire_host::ExecResponse {
                exit_code: i32::from(argv.iter().any(|word| word == "fail")),
                ..Default::default()
            });
            agent
        };
        Self {
            keeper,
            agents: [start().await, start().await],
        }
    }

    pub(super) fn database(&self) -> String {
        match &self.keeper {
            Keeper::File(dir) => format!("sqlite://{}/fuse.db", dir.path().display()),
            Keeper::Postgres(_, url) => url.clone(),
        }
    }

    /// Starts an orchestrator that lives.
    pub(crate) fn start(&self) -> Program {
        self.orchestrator(None)
    }

    /// Registers both hosts.
    pub(crate) async fn register(&self, orchestrator: &Program) {
        for (id, agent) in ["one", "two"].iter().zip(&self.agents) {
            let host = json!({
                "id": id, "url": agent.url(), "token": TOKEN, "capacity": {"vm_count": 5}
            });
            let (status, _) = orchestrator
                .call(Method::POST, "/v1/hosts", Some(host))
                .await;
            assert_eq!(status, 201);
        }
    }

    /// Starts an orchestrator, which perhaps dies at the place of that number.
    pub(super) fn orchestrator(&self, die: Option<(u64, Operation)>) -> Program {
        let (at, counted) = die.map_or((String::new(), ""), |(at, operation)| {
            (at.to_string(), operation.counted())
        });
        let env = [
            ("DATABASE_URL", self.database()),
            ("ORCH_AUTH_TOKEN", "master".to_owned()),
            ("TOKEN_ENCRYPTION_KEY", KEY.to_owned()),
            ("FUSE_DIE_AT", at),
            ("FUSE_DIE_FOR", counted.to_owned()),
        ];
        let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
        Program::start_with(&env, &["--reconcile-interval", "100ms"])
    }

    /// Makes it 20 s later for the replica that came last: a dead one is known to be dead. A file
    /// needs no such thing, because whoever has it is alone.
    pub(super) fn the_last_one_is_long_dead(&self) {
        if let Keeper::Postgres(server, url) = &self.keeper {
            let sql = "UPDATE replicas SET seen_at = 0 \
                 WHERE started_at = (SELECT MAX(started_at) FROM replicas)";
            server.query(url, sql).unwrap();
        }
    }

    /// Registers both hosts and makes the environments that the operation needs, and one that it
    /// has nothing to do with. Answers with the snapshot that it needs.
    pub(super) async fn furnish(&self, orchestrator: &Program, operation: Operation) -> String {
        self.register(orchestrator).await;
        let subject = operation.has_subject().then_some("subject");
        for task in ["bystander"].into_iter().chain(subject) {
            let body = json!({"task_id": task});
            orchestrator
                .call(Method::POST, "/v1/environments", Some(body))
                .await;
            let path = format!("/v1/environments/fuse-{task}");
            wait(orchestrator, &path, |(_, is)| is["state"] == "running").await;
        }
        let Some(task) = operation.snapshot_of() else {
            return String::new();
        };
        let path = format!("/v1/environments/fuse-{task}/snapshots");
        let (status, taken) = orchestrator
            .call(Method::POST, &path, Some(json!({})))
            .await;
        assert_eq!(status, 202, "{taken}");
        let id = taken["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/snapshots/{id}");
        wait(orchestrator, &path, |(_, is)| is["state"] == "ready").await;
        id
    }

    /// Waits until nothing is on its way and the hosts were looked at a few times.
    pub(crate) async fn settle(&self, orchestrator: &Program) {
        wait(orchestrator, "/ready", |(status, _)| *status == 200).await;
        // Settled: no operation is open, nothing is on its way.
        let is = |list: &serde_json::Value, what: &str, wanted: &[&str]| {
            let all = list[what].as_array();
            all.is_some_and(|all| {
                all.iter()
                    .all(|one| one["state"].as_str().is_some_and(|is| wanted.contains(&is)))
            })
        };
        wait(orchestrator, "/v1/environments", |(_, list)| {
            is(list, "environments", &["running", "draining"])
        })
        .await;
        wait(orchestrator, "/v1/snapshots", |(_, list)| {
            is(list, "snapshots", &["ready", "error"])
        })
        .await;
        for agent in &self.agents {
            let looks = || agent.calls().iter().filter(|call| *call == "list").count();
            let before = looks();
            // What is seen twice is acted on in the second look: the third comes after it. Twice
            // that, because what recovery still works on is not looked at until it is done.
            let looked = agent.until(|_| looks() >= before + 6);
            let waited = tokio::time::timeout(PATIENCE, looked).await;
            assert!(waited.is_ok(), "no cycles");
        }
    }
}
