//! Kills the orchestrator at every place of every operation, starts it again, lets it run a few
//! cycles, and checks that nothing is lost, leaked, or there twice.
//!
//! The places are the moments before and after each effect on the store or a host
//! (`control::fail_point`). They are counted, not listed: an operation is repeated, dying one place
//! later each time, until it comes to its end alive.

use std::{collections::BTreeMap, io::Write as _, time::Duration};

use fuse_store::{Store, Vault};
use fuse_testkit::fake_agent::{FakeAgent, TOKEN};
use reqwest::Method;
use serde_json::{Value, json};

use crate::program::{KEY, Program, wait};

/// No operation has as many places.
const MOST: u64 = 60;
/// Operations at work side by side.
const PARALLEL: usize = 4;

/// An operation that the orchestrator is to die in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Create,
    /// A create whose script fails, so that it is undone.
    Undone,
    Fork,
    Drain,
    Rotate,
    Snapshot,
    Migrate,
    Destroy,
}

impl Operation {
    const ALL: [Self; 8] = [
        Self::Create,
        Self::Undone,
        Self::Fork,
        Self::Drain,
        Self::Rotate,
        Self::Snapshot,
        Self::Migrate,
        Self::Destroy,
    ];

    /// Effects on what is counted.
    fn counted(self) -> &'static str {
        match self {
            Self::Fork => "fuse-fork-",
            // Who is moved, and who takes the place.
            Self::Migrate => "fuse-subject,fuse-mig-",
            _ => "fuse-subject",
        }
    }

    /// Whether the subject is there before.
    fn has_subject(self) -> bool {
        !matches!(self, Self::Create | Self::Undone)
    }

    fn request(self) -> (Method, &'static str, Option<Value>) {
        let create = |script: &str| {
            let body = json!({
                "task_id": "subject", "startup_script": script, "expose": [{"port": 80}],
                "spec": {"cpus": 2},
            });
            (Method::POST, "/v1/environments", Some(body))
        };
        let act = |path, body| (Method::POST, path, body);
        match self {
            Self::Create => create("true"),
            Self::Undone => create("fail"),
            Self::Fork => act("/v1/environments/fuse-subject?action=fork", Some(json!({}))),
            Self::Drain => act("/v1/environments/fuse-subject?action=drain", None),
            Self::Rotate => act("/v1/environments/fuse-subject?action=rotate-token", None),
            Self::Snapshot => act("/v1/environments/fuse-subject/snapshots", Some(json!({}))),
            Self::Migrate => act(
                "/v1/environments/fuse-subject?action=migrate",
                Some(json!({})),
            ),
            Self::Destroy => (Method::DELETE, "/v1/environments/fuse-subject", None),
        }
    }
}

/// A fleet of two hosts whose orchestrator is a process.
pub(crate) struct Fleet {
    dir: tempfile::TempDir,
    pub(crate) agents: [FakeAgent; 2],
}

impl Fleet {
    pub(crate) async fn new() -> Self {
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
            dir: tempfile::tempdir().unwrap(),
            agents: [start().await, start().await],
        }
    }

    fn database(&self) -> String {
        format!("sqlite://{}/fuse.db", self.dir.path().display())
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
    fn orchestrator(&self, die: Option<(u64, Operation)>) -> Program {
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

    /// Registers both hosts and makes the environments that the operation needs, and one that it
    /// has nothing to do with.
    async fn furnish(&self, operation: Operation) {
        let mut orchestrator = self.orchestrator(None);
        self.register(&orchestrator).await;
        let subject = operation.has_subject().then_some("subject");
        for task in ["bystander"].into_iter().chain(subject) {
            let body = json!({"task_id": task});
            orchestrator
                .call(Method::POST, "/v1/environments", Some(body))
                .await;
            let path = format!("/v1/environments/fuse-{task}");
            wait(&orchestrator, &path, |(_, is)| is["state"] == "running").await;
        }
        orchestrator.end();
    }

    /// Runs the operation on an orchestrator that is to die at a place. Whether it did; if not, the
    /// operation had no such place.
    async fn run(&self, operation: Operation, at: u64) -> bool {
        let mut orchestrator = self.orchestrator(Some((at, operation)));
        wait(&orchestrator, "/ready", |(status, _)| *status == 200).await;
        let (method, path, body) = operation.request();
        let mut request = orchestrator
            .http
            .request(method, format!("{}{path}", orchestrator.base))
            .bearer_auth("master");
        if let Some(body) = body {
            request = request.json(&body);
        }
        // A connection that breaks is what dying looks like from here. One that answered before its
        // last effect comes to that when it ends, which it does not before its work is done.
        let _answer = request.send().await;
        orchestrator.end_or_die() == Some(9)
    }

    /// Starts the orchestrator again and lets it look a few times.
    async fn recover(&self) -> Program {
        let orchestrator = self.orchestrator(None);
        self.settle(&orchestrator).await;
        orchestrator
    }

    /// Waits until nothing is on its way and the hosts were looked at a few times.
    pub(crate) async fn settle(&self, orchestrator: &Program) {
        wait(orchestrator, "/ready", |(status, _)| *status == 200).await;
        // Settled: no operation is open, nothing is on its way.
        wait(orchestrator, "/v1/environments", |(_, list)| {
            let all = list["environments"].as_array();
            all.is_some_and(|all| {
                all.iter()
                    .all(|one| matches!(one["state"].as_str(), Some("running" | "draining")))
            })
        })
        .await;
        for agent in &self.agents {
            let looks = || agent.calls().iter().filter(|call| *call == "list").count();
            let before = looks();
            // What is seen twice is acted on in the second look: the third comes after it.
            let looked = agent.until(|_| looks() >= before + 3);
            let waited = tokio::time::timeout(Duration::from_secs(30), looked).await;
            assert!(waited.is_ok(), "no cycles");
        }
    }
}

/// Kills, recovers, checks. `false` when the operation came to its end alive.
async fn die_at(operation: Operation, at: u64) -> bool {
    let fleet = Fleet::new().await;
    fleet.furnish(operation).await;
    let died = fleet.run(operation, at).await;
    let mut orchestrator = fleet.recover().await;
    let place = format!("{operation:?} at {at}");
    check_answers(&fleet, &orchestrator, operation, &place).await;
    orchestrator.end();
    check_store(&fleet, &place).await;
    died
}

/// What the API says agrees with what the hosts have.
pub(crate) async fn check_hosts(fleet: &Fleet, fuse: &Program, place: &str) {
    let get = async |path: &str| fuse.call(Method::GET, path, None).await;
    let (_, list) = get("/v1/environments").await;
    let mut on_hosts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut cpus: BTreeMap<String, i64> = BTreeMap::new();
    for record in list["environments"].as_array().unwrap() {
        let host = record["host_id"].as_str().unwrap().to_owned();
        *cpus.entry(host.clone()).or_default() += record["spec"]["cpus"].as_i64().unwrap_or(0);
        let id = record["id"].as_str().unwrap().to_owned();
        on_hosts.entry(host).or_default().push(id);
    }
    for (id, agent) in ["one", "two"].iter().zip(&fleet.agents) {
        let tracked = on_hosts.remove(*id).unwrap_or_default();
        // Sorted, both; a VM that two hosts have would be on one of them without a record.
        assert_eq!(agent.vms(), tracked, "{place}: VMs of host {id}");
        let (_, host) = get(&format!("/v1/hosts/{id}")).await;
        let allocated = &host["allocated"];
        assert_eq!(allocated["vm_count"], tracked.len(), "{place}: {host}");
        assert_eq!(
            allocated["cpus"],
            cpus.get(*id).copied().unwrap_or(0),
            "{place}: {host}"
        );
    }
}

/// What is known of the operation that was cut short.
async fn check_answers(fleet: &Fleet, fuse: &Program, operation: Operation, place: &str) {
    check_hosts(fleet, fuse, place).await;
    let get = async |path: &str| fuse.call(Method::GET, path, None).await;
    // What had been acknowledged before is as it was.
    let (_, bystander) = get("/v1/environments/fuse-bystander").await;
    assert_eq!(bystander["state"], "running", "{place}");
    let (status, subject) = get("/v1/environments/fuse-subject").await;
    let (_, task) = get("/v1/tasks/subject").await;
    match operation {
        Operation::Create | Operation::Undone => match status {
            // Adopted, or accepted before it could die.
            200 => assert_eq!(task["run_status"], "running", "{place}: {task}"),
            _ => assert!(
                task.get("error").is_some() || task["run_status"] == "failed",
                "{place}: {task}"
            ),
        },
        Operation::Fork | Operation::Rotate | Operation::Snapshot => {
            assert_eq!(subject["state"], "running", "{place}");
        }
        // It is in one place, the old one or the new one, and its task is there.
        Operation::Migrate => {
            let (_, list) = get("/v1/environments?task_id=subject").await;
            let there = list["environments"].as_array().unwrap();
            assert_eq!(there.len(), 1, "{place}: {list}");
            assert_eq!(there[0]["state"], "running", "{place}");
            assert_eq!(task["vm_id"], there[0]["id"], "{place}: {task}");
            assert_eq!(task["run_status"], "running", "{place}: {task}");
            let (_, all) = get("/v1/environments").await;
            let count = all["environments"].as_array().unwrap().len();
            assert_eq!(count, 2, "{place}: {all}");
        }
        Operation::Drain => {
            assert!(
                matches!(subject["state"].as_str(), Some("running" | "draining")),
                "{place}"
            );
        }
        // A destroy that was not begun may be lost with its caller; one that was is finished.
        Operation::Destroy => {
            assert!(
                status == 404 || subject["state"] == "running",
                "{place}: {subject}"
            );
        }
    }
    check_usable(fuse, place).await;
}

/// The plan of a cycle is printed by a program of its own, beside nobody: the store has one process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plan_of_a_cycle_is_printed_and_not_carried_out() {
    let fleet = Fleet::new().await;
    fleet.furnish(Operation::Destroy).await;
    fleet.agents[0].lose_vm("fuse-bystander");
    fleet.agents[1].lose_vm("fuse-bystander");
    let env = [
        ("DATABASE_URL", fleet.database()),
        ("TOKEN_ENCRYPTION_KEY", KEY.to_owned()),
    ];
    let reconcile = |flags: &'static [&'static str]| {
        let mut command = crate::program::command();
        command.arg("reconcile").args(flags).envs(env.clone());
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    let asked = reconcile(&["--dry-run"]).await.unwrap();
    let text = String::from_utf8(asked.stdout).unwrap();
    assert!(
        asked.status.success(),
        "{}",
        String::from_utf8_lossy(&asked.stderr)
    );
    assert!(text.starts_with("missing      fuse-bystander "), "{text}");
    assert!(
        text.contains("2 environments, 0 VMs of others left alone, 1 things to do"),
        "{text}"
    );
    let refused = reconcile(&[]).await.unwrap();
    assert!(
        !refused.status.success(),
        "it has to be said that it is a preview"
    );
    let again = reconcile(&["--dry-run"]).await.unwrap();
    assert_eq!(
        String::from_utf8(again.stdout).unwrap(),
        text,
        "nothing was done"
    );
}

/// The name is free, or its environment works; either way it can be destroyed and made again.
async fn check_usable(fuse: &Program, place: &str) {
    let by_task = "/v1/environments?task_id=subject";
    let (_, list) = fuse.call(Method::GET, by_task, None).await;
    // A move has changed its id.
    let id = list["environments"][0]["id"].as_str();
    let path = &format!("/v1/environments/{}", id.unwrap_or("fuse-subject"));
    let (status, record) = fuse.call(Method::GET, path, None).await;
    if status == 200 && record["state"] == "running" {
        let rotate = format!("{path}?action=rotate-token");
        let (status, answer) = fuse.call(Method::POST, &rotate, None).await;
        assert_eq!(status, 204, "{place}: {answer}");
    }
    if status == 200 {
        let (status, answer) = fuse.call(Method::DELETE, path, None).await;
        assert_eq!(status, 204, "{place}: {answer}");
    }
    let body = json!({"task_id": "subject"});
    let (status, answer) = fuse
        .call(Method::POST, "/v1/environments", Some(body))
        .await;
    assert_eq!(status, 202, "{place}: {answer}");
    let path = "/v1/environments/fuse-subject";
    wait(fuse, path, |(_, is)| is["state"] == "running").await;
}

/// What the API does not show: open operations, and snapshots that only one side knows.
pub(crate) async fn check_store(fleet: &Fleet, place: &str) {
    let key = fuse_model::Redacted::new(hex_key());
    let store = Store::open(Some(&fleet.database()), Vault::new(&key, None))
        .await
        .unwrap();
    let filter = fuse_store::EnvironmentFilter::default();
    for record in store
        .environment_list(&filter, &everything())
        .await
        .unwrap()
        .items
    {
        assert!(record.operation.is_none(), "{place}: {record:?}");
    }
    let recorded = store
        .snapshot_list(&fuse_store::SnapshotFilter::default(), &everything())
        .await
        .unwrap();
    let mut recorded: Vec<String> = recorded
        .items
        .into_iter()
        .map(|snapshot| snapshot.id.to_string())
        .filter(|id| !id.starts_with("fork-seed-"))
        .collect();
    recorded.sort();
    let mut kept: Vec<String> = fleet.agents.iter().flat_map(FakeAgent::snapshots).collect();
    kept.sort();
    assert_eq!(kept, recorded, "{place}: snapshots");
    store.close().await;
}

/// One page that has room for whatever a long soak leaves.
fn everything<T>() -> fuse_store::Page<T> {
    fuse_store::Page {
        after: None,
        limit: 100_000,
    }
}

fn hex_key() -> [u8; 32] {
    std::array::from_fn(|at| u8::from_str_radix(&KEY[2 * at..2 * at + 2], 16).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_at_any_place_loses_and_leaks_nothing() {
    let turns = std::sync::Arc::new(tokio::sync::Semaphore::new(PARALLEL));
    let mut places = tokio::task::JoinSet::new();
    for operation in Operation::ALL {
        let turns = turns.clone();
        places.spawn(async move {
            for at in 1..=MOST {
                let _turn = turns.acquire().await.unwrap();
                if !die_at(operation, at).await {
                    return (operation, at - 1);
                }
            }
            panic!("{operation:?} never comes to its end");
        });
    }
    let mut total = 0;
    while let Some(counted) = places.join_next().await {
        let (operation, count) = counted.unwrap();
        say(&format!("{operation:?} died at {count} places"));
        assert!(count >= 4, "{operation:?} has effects");
        total += count;
    }
    say(&format!("{total} places"));
}

/// Past the capture of the test harness.
fn say(text: &str) {
    let line = format!("recovery matrix of the orchestrator: {text}\n");
    std::io::stderr().lock().write_all(line.as_bytes()).unwrap();
}
