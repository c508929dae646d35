//! A host that answers nonsense, or not at all, among others that are fine: its environments are left
//! alone and come back, and the others are looked after as if nothing was.

use std::time::Duration;

use fuse_control::Settings;
use fuse_testkit::{
    Slot,
    fake_agent::{FakeAgent, Gate, Step},
    outside::Outside,
    until,
};
use futures_util::future::join_all;
use serde_json::json;

use crate::support::{Options, Orchestrator};

/// Calls of each step that fail: more than any of these tests makes.
const ALL: usize = 100_000;
const STEPS: [Step; 8] = [
    Step::Capacity,
    Step::Create,
    Step::Get,
    Step::List,
    Step::Delete,
    Step::Upload,
    Step::Exec,
    Step::StartAgent,
];

/// Nothing takes as long, also over a bad link; waiting longer means that it never comes.
const LOSSY: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// 500 to everything.
    Fails,
    /// 200 to everything, and a body that is somebody else's.
    Garbage,
    /// No answer.
    Hangs,
}

impl Fault {
    fn begin(self, agent: &FakeAgent) -> Vec<Gate> {
        for step in STEPS {
            match self {
                Self::Fails => agent.fail(step, ALL, 500, "out of order"),
                Self::Garbage => agent.fail(step, ALL, 200, "<html>a proxy</html>"),
                Self::Hangs => {}
            }
        }
        match self {
            Self::Fails | Self::Garbage => Vec::new(),
            Self::Hangs => vec![agent.hold(Step::List), agent.hold(Step::Capacity)],
        }
    }
}

fn options() -> Options {
    Options {
        settings: Settings {
            reconcile_interval: Duration::from_millis(100),
            host_check_interval: Duration::from_millis(100),
            ..Settings::default()
        },
        ..Options::default()
    }
}

async fn fleet() -> (Orchestrator, [FakeAgent; 3]) {
    let fuse = Orchestrator::with(options()).await;
    let agents = [
        FakeAgent::start().await.unwrap(),
        FakeAgent::start().await.unwrap(),
        FakeAgent::start().await.unwrap(),
    ];
    for (number, agent) in agents.iter().enumerate() {
        fuse.register(&format!("h{number}"), agent).await;
    }
    (fuse, agents)
}

fn pinned(task: &str, host: usize) -> serde_json::Value {
    json!({"task_id": task, "spec": {"host_id": format!("h{host}")}})
}

/// While a host is away its address may be somebody else's, who has no VM of ours either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_s_not_found_ends_nothing() {
    for said in ["", "<html>404</html>", "not found"] {
        let (fuse, agents) = fleet().await;
        fuse.create(&pinned("a", 0)).await.is(201);
        agents[0].fail(Step::Delete, 1, 404, said);
        let answer = fuse.delete("/v1/environments/fuse-a").await;
        assert_eq!((answer.status, answer.code()), (500, "internal"), "{said}");
        let blames = said.is_empty() == answer.message().contains("is another program at");
        assert!(blames, "{}", answer.text);
        // It is tried again, and then it is the host that says so.
        fuse.until("/v1/environments/fuse-a", |answer| answer.status == 404)
            .await;
        assert!(agents[0].vms().is_empty(), "{said}");
        fuse.stop().await;
    }
}

/// A create that a host carried out and did not own up to, and that went elsewhere the next time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_vm_of_one_name_goes_and_the_first_stays() {
    let (fuse, agents) = fleet().await;
    fuse.create(&pinned("a", 0)).await.is(201);
    let fleet_id = fuse.control.store().fleet_id().to_string();
    agents[1].add_vm("fuse-a", Some(&fleet_id));
    let gone = agents[1].until(|agent| agent.vms().is_empty());
    let gone = tokio::time::timeout(Duration::from_secs(20), gone);
    assert!(gone.await.is_ok(), "the second VM stays");
    let record = fuse.get("/v1/environments/fuse-a").await.is(200);
    assert_eq!(record["state"], "running");
    assert_eq!(agents[0].vms(), ["fuse-a"]);
    fuse.stop().await;
}

async fn survives(fault: Fault) {
    let (fuse, agents) = fleet().await;
    for host in 0..3 {
        fuse.create(&pinned(&format!("on-{host}"), host))
            .await
            .is(201);
    }
    fuse.create(&pinned("lost", 1)).await.is(201);
    let held = fault.begin(&agents[0]);
    // The others are looked after: a VM that goes is noticed, an orphan goes.
    agents[1].lose_vm("fuse-lost");
    let fleet_id = fuse.control.store().fleet_id().to_string();
    agents[2].add_vm("fuse-orphan", Some(&fleet_id));
    fuse.until("/v1/environments/fuse-lost", |answer| answer.status == 404)
        .await;
    let gone = agents[2].until(|agent| agent.vms() == ["fuse-on-2"]);
    let gone = tokio::time::timeout(Duration::from_secs(20), gone);
    assert!(
        gone.await.is_ok(),
        "{fault:?}: an orphan on another host stays"
    );
    if fault != Fault::Hangs {
        // New ones go elsewhere once the host is known to be out of order.
        fuse.until("/v1/hosts/h0", |answer| {
            answer.json["agent"]["reachable"] == false
        })
        .await;
        let made = fuse.create(&json!({"task_id": "new"})).await.is(201);
        assert_ne!(made["host_id"], "h0", "{fault:?}");
        let destroyed = fuse.delete("/v1/environments/fuse-on-0").await;
        assert_eq!(destroyed.status, 500, "{fault:?}: {}", destroyed.text);
    }
    let record = fuse.get("/v1/environments/fuse-on-0").await.is(200);
    let expected = if fault == Fault::Hangs {
        "running"
    } else {
        "destroying"
    };
    assert_eq!(record["state"], expected, "{fault:?}");
    assert_eq!(
        agents[0].vms(),
        ["fuse-on-0"],
        "nothing is destroyed unseen"
    );
    // It heals, and what was begun comes to its end.
    drop(held);
    agents[0].heal();
    fuse.until("/v1/hosts/h0", |answer| {
        answer.json["agent"]["reachable"] == true
    })
    .await;
    if fault == Fault::Hangs {
        assert_eq!(fuse.delete("/v1/environments/fuse-on-0").await.status, 204);
    }
    fuse.until("/v1/environments/fuse-on-0", |answer| answer.status == 404)
        .await;
    assert!(agents[0].vms().is_empty());
    fuse.create(&pinned("again", 0)).await.is(201);
    fuse.stop().await;
}

#[tokio::test]
async fn a_host_that_fails_everything() {
    survives(Fault::Fails).await;
}

#[tokio::test]
async fn a_host_that_answers_garbage() {
    survives(Fault::Garbage).await;
}

#[tokio::test]
async fn a_host_that_hangs() {
    survives(Fault::Hangs).await;
}

/// A host behind a bad link: every fifth packet is lost, both ways. Calls take longer, and some
/// fail; whatever was answered is true, and nobody's VM is destroyed or forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_loses_every_fifth_packet() {
    if let Some(reason) = fuse_testkit::missing_for_guests() {
        fuse_testkit::skip!("faults::loss", "{reason}");
    }
    let slot = Slot::claim().unwrap();
    let outside = Outside::create(&slot).unwrap();
    let ip = outside.ip;
    let listener = outside.run(move || Ok(std::net::TcpListener::bind((ip, 0))?));
    let agent = FakeAgent::start_on(listener.unwrap()).unwrap();
    let fuse = Orchestrator::with(options()).await;
    fuse.register("h", &agent).await;
    outside.lose(5).unwrap();

    let tasks: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
    let create = async |task: &String| {
        let answer = fuse.create(&json!({"task_id": task})).await;
        let (status, said) = (answer.status, answer.message());
        match status {
            201 => assert_eq!(answer.json["state"], "running"),
            // The host was taken for lost just then, or a step did not come through.
            500 | 502 | 503 | 504 => assert_ne!(said, "", "{}", answer.text),
            _ => panic!("create {task}: {}", answer.text),
        }
        (status == 201).then(|| format!("fuse-{task}"))
    };
    let made: Vec<String> = join_all(tasks.iter().map(create))
        .await
        .into_iter()
        .flatten()
        .collect();
    assert_ne!(made.len(), 0, "not one create came through");
    let (ended, kept) = made.split_at(made.len() / 2);
    let destroy = async |id: &String| {
        let path = format!("/v1/environments/{id}");
        let answer = fuse.delete(&path).await;
        // Refused or not, it was accepted and comes to its end while packets are still lost.
        assert!(matches!(answer.status, 204 | 500), "{id}: {}", answer.text);
        until("the end of an environment", LOSSY, || async {
            let answer = fuse.get(&path).await;
            anyhow::ensure!(answer.status == 404, "{}", answer.text);
            Ok(())
        })
        .await
        .unwrap();
    };
    join_all(ended.iter().map(destroy)).await;
    let lost = outside.lose_nothing().unwrap();
    assert!(lost > 20, "only {lost} packets were lost");

    // What is left is what somebody was told to have, on the host and in the accounts.
    until("a fleet at rest", LOSSY, || async {
        anyhow::ensure!(agent.vms() == kept, "{:?}", agent.vms());
        let host = fuse.get("/v1/hosts/h").await.is(200);
        let count = host["allocated"]["vm_count"].as_u64();
        anyhow::ensure!(count == u64::try_from(kept.len()).ok(), "{host}");
        anyhow::ensure!(host["agent"]["reachable"] == true, "{host}");
        Ok(())
    })
    .await
    .unwrap();
    for id in kept {
        let record = fuse.get(&format!("/v1/environments/{id}")).await.is(200);
        assert_eq!(record["state"], "running", "{id}");
    }
    fuse.create(&json!({"task_id": "new"})).await.is(201);
    fuse.stop().await;
}
