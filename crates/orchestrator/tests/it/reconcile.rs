//! The reconcile loop on a fake host: lost VMs, orphans, destroys that fail, limits.

use std::time::Duration;

use fuse_control::Settings;
use fuse_testkit::fake_agent::{FakeAgent, Step};
use serde_json::{Value, json};

use crate::support::{Options, Orchestrator, with_agent};

/// Cycles come on demand only.
fn settings() -> Settings {
    Settings {
        reconcile_interval: Duration::from_secs(3600),
        ..Settings::default()
    }
}

/// Runs one cycle and waits until it has asked the host.
async fn cycle(fuse: &Orchestrator, agent: &FakeAgent) {
    let before = agent.count(Step::List, "").max(lists(agent));
    fuse.control.reconcile_now();
    while lists(agent) == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn lists(agent: &FakeAgent) -> usize {
    agent.calls().iter().filter(|call| *call == "list").count()
}

fn options() -> Options {
    Options {
        settings: settings(),
        ..Options::default()
    }
}

#[tokio::test]
async fn a_lost_vm_ends_its_environment() {
    let (fuse, agent) = with_agent(options()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.create(&json!({"task_id": "b"})).await.is(201);
    // The first cycle is the recovery; it finds nothing odd.
    cycle(&fuse, &agent).await;
    let mut events = fuse.events("fuse-a", None).await;
    assert_eq!(events.next().await.unwrap()["state"], "running");
    agent.lose_vm("fuse-a");
    cycle(&fuse, &agent).await;
    let lost = events.next().await.unwrap();
    assert_eq!(lost["state"], "destroying");
    assert_eq!(lost["error"], "vm missing from provider");
    assert_eq!(events.states().await, ["destroyed"]);
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(task["last_error"], "vm missing from provider");
    fuse.get("/v1/environments/fuse-b").await.is(200);
    fuse.stop().await;
}

#[tokio::test]
async fn orphans_go_at_the_second_sighting_and_strangers_stay() {
    let (fuse, agent) = with_agent(options()).await;
    cycle(&fuse, &agent).await;
    let fleet = fuse.control.store().fleet_id().to_string();
    agent.add_vm("fuse-orphan", Some(&fleet));
    agent.add_vm("fuse-stranger", Some("another fleet"));
    agent.add_vm("fuse-untagged", None);
    cycle(&fuse, &agent).await;
    cycle(&fuse, &agent).await;
    // The third cycle starts after the second has acted.
    cycle(&fuse, &agent).await;
    assert_eq!(agent.vms(), ["fuse-stranger", "fuse-untagged"]);
    fuse.stop().await;
}

#[tokio::test]
async fn a_destroy_that_fails_is_retried_until_it_works() {
    let (fuse, agent) = with_agent(options()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    cycle(&fuse, &agent).await;
    agent.fail(Step::Delete, 2, 500, "device busy");
    let answer = fuse.delete("/v1/environments/fuse-a").await;
    assert_eq!((answer.status, answer.code()), (500, "internal"));
    assert!(answer.message().contains("device busy"), "{}", answer.text);
    let record = fuse.get("/v1/environments/fuse-a").await.is(200);
    assert_eq!(
        (&record["state"], &record["task_id"]),
        (&json!("destroying"), &json!(""))
    );
    assert!(record["error"].as_str().unwrap().contains("device busy"));
    cycle(&fuse, &agent).await;
    cycle(&fuse, &agent).await;
    cycle(&fuse, &agent).await;
    fuse.until("/v1/environments/fuse-a", |answer| answer.status == 404)
        .await;
    assert!(agent.vms().is_empty());
    fuse.stop().await;
}

#[tokio::test]
async fn a_host_that_does_not_answer_loses_nothing() {
    let (fuse, mut agent) = with_agent(Options {
        settings: Settings {
            reconcile_interval: Duration::from_millis(50),
            host_check_interval: Duration::from_millis(50),
            ..settings()
        },
        ..Options::default()
    })
    .await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    agent.stop().await;
    let host = fuse
        .until("/v1/hosts/h", |answer| {
            answer.json["agent"]["reachable"] == false
        })
        .await;
    assert!(!host.json["agent"]["error"].as_str().unwrap().is_empty());
    let record = fuse.get("/v1/environments/fuse-a").await.is(200);
    assert_eq!(record["state"], "running");
    agent.start_again().await.unwrap();
    let host = fuse
        .until("/v1/hosts/h", |answer| {
            answer.json["agent"]["reachable"] == true
        })
        .await;
    assert_eq!(host.json["agent"]["version"], "9.8.7", "as it said");
    assert_eq!(
        fuse.get("/v1/environments/fuse-a").await.is(200)["state"],
        "running"
    );
    assert_eq!(agent.vms(), ["fuse-a"]);
    fuse.stop().await;
}

/// Two environments and three cycles, after which a limit of the settings has ended `fuse-a`. The
/// other one has a limit of its own.
async fn one_is_ended(settings: Settings, own: &Value) -> (Orchestrator, FakeAgent) {
    let (fuse, agent) = with_agent(Options {
        settings,
        ..Options::default()
    })
    .await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.create(&json!({"task_id": "b", "spec": own}))
        .await
        .is(201);
    for _ in 0..3 {
        cycle(&fuse, &agent).await;
    }
    fuse.until("/v1/environments/fuse-a", |answer| answer.status == 404)
        .await;
    fuse.get("/v1/environments/fuse-b").await.is(200);
    assert_eq!(agent.vms(), ["fuse-b"]);
    (fuse, agent)
}

#[tokio::test]
async fn limits_end_an_environment_at_the_second_strike() {
    let settings = Settings {
        task_stuck_timeout: Duration::from_millis(1),
        ..settings()
    };
    let own = json!({"max_runtime_seconds": 3600});
    let (fuse, _agent) = one_is_ended(settings, &own).await;
    let task = fuse.get("/v1/tasks/a").await.is(200);
    let text = task["last_error"].as_str().unwrap();
    assert!(text.starts_with("task stuck: runtime "), "{text}");
    let suspected = fuse.audit("task.stuck_suspected").await;
    assert_eq!(
        suspected,
        json!([{"entity": "task a", "payload": {"vm_id": "fuse-a"}}])
    );
    fuse.stop().await;
}

#[tokio::test]
async fn what_nobody_uses_is_suspected_first_and_destroyed_then() {
    let settings = Settings {
        default_idle_timeout: Duration::from_millis(1),
        ..settings()
    };
    let own = json!({"idle_timeout_seconds": 3600});
    let (fuse, _agent) = one_is_ended(settings, &own).await;
    let suspected = fuse.audit("vm.idle_suspected").await;
    assert_eq!(suspected, json!([{"entity": "vm fuse-a", "payload": {}}]));
    let task = fuse.get("/v1/tasks/a").await.is(200);
    let text = task["last_error"].as_str().unwrap();
    assert!(text.starts_with("environment idle: "), "{text}");
    fuse.stop().await;
}

#[tokio::test]
async fn a_guest_that_booted_again_is_set_up_again() {
    let (fuse, agent) = with_agent(options()).await;
    let request = json!({
        "task_id": "a",
        "manifest_inline": "eyJtYWNoaW5lIjp7ImVudiI6eyJLIjp7InNlY3JldCI6IlMifX19fQ==",
        "secrets": {"S": "value"},
        "startup_script": "true",
        "expose": [{"port": 80, "as": "web"}],
    });
    fuse.create(&request).await.is(201);
    cycle(&fuse, &agent).await;
    assert_eq!(agent.count(Step::StartAgent, "fuse-a"), 1);
    let token = agent.file("fuse-a", "/fuse/auth-token").unwrap();
    agent.reboot("fuse-a");
    assert!(agent.file("fuse-a", "/fuse/secrets.json").is_none());
    // The first attempt fails, is said, and is repeated soon.
    agent.fail(Step::StartAgent, 1, 500, "still booting");
    cycle(&fuse, &agent).await;
    let failed = fuse
        .until("/v1/environments/fuse-a", |answer| {
            answer.json["error"]
                .as_str()
                .is_some_and(|text| text.contains("still booting"))
        })
        .await;
    assert_eq!(failed.json["state"], "running");
    let noted = json!([{"entity": "vm fuse-a", "payload": {"error": failed.json["error"]}}]);
    assert_eq!(fuse.audit("secrets.recovery_failed").await, noted);
    let healed = fuse
        .until("/v1/environments/fuse-a", |answer| {
            answer.json.get("error").is_none()
        })
        .await;
    assert_eq!(healed.json["endpoints"][0]["as"], "web");
    let noted = json!([{"entity": "vm fuse-a", "payload": {"keys": ["S"]}}]);
    assert_eq!(fuse.audit("secrets.recovered").await, noted);
    assert!(agent.serves("fuse-a"));
    let file = |path: &str| String::from_utf8(agent.file("fuse-a", path).unwrap()).unwrap();
    assert_eq!(file("/fuse/secrets.json"), r#"{"S":"value"}"#);
    assert_eq!(file("/fuse/env"), "K='value'\n");
    assert_ne!(file("/fuse/auth-token").into_bytes(), token);
    // Not the script: what it made is on the disk.
    assert_eq!(agent.count(Step::Exec, "fuse-a"), 1);
    fuse.stop().await;
}

/// A host agent of an earlier release does not say what its guests run; its successor does.
#[tokio::test]
async fn what_guests_run_is_noted_when_their_host_says_so() {
    let (fuse, agent) = with_agent(options()).await;
    let made = fuse.create(&json!({"task_id": "a"})).await.is(201);
    assert_eq!(made.get("guest_version"), None);
    for version in ["1.2.3", "1.3.0"] {
        agent.note_guest("fuse-a", version);
        cycle(&fuse, &agent).await;
        fuse.until("/v1/environments/fuse-a", |answer| {
            answer.json["guest_version"] == version
        })
        .await;
    }
    agent.note_guest("fuse-a", "\u{1b}[2Jnonsense");
    cycle(&fuse, &agent).await;
    let kept = fuse.get("/v1/environments/fuse-a").await.is(200);
    assert_eq!(kept["guest_version"], "1.3.0");
    fuse.stop().await;
}

#[tokio::test]
async fn a_vm_that_ended_by_itself_ends_its_environment() {
    let (fuse, agent) = with_agent(options()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    cycle(&fuse, &agent).await;
    let mut events = fuse.events("fuse-a", None).await;
    assert_eq!(events.next().await.unwrap()["state"], "running");
    agent.end_vm("fuse-a");
    let exec = json!({"cmd": ["true"]});
    fuse.post("/v1/environments/fuse-a?action=exec", &exec)
        .await
        .is_error(409, "conflict", "vm not running: its VMM process has ended");
    // The second cycle comes by itself, soon.
    cycle(&fuse, &agent).await;
    let ended = events.next().await.unwrap();
    assert_eq!(ended["state"], "destroying");
    assert_eq!(ended["error"], "vm stopped on its host");
    assert_eq!(events.states().await, ["destroyed"]);
    assert!(agent.vms().is_empty());
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(task["last_error"], "vm stopped on its host");
    fuse.stop().await;
}

/// A store in memory does not know whose the VMs are that were there before it.
#[tokio::test]
async fn what_was_there_before_is_quarantined_or_destroyed_on_demand() {
    for destroy_unknown_on_boot in [false, true] {
        let agent = FakeAgent::start().await.unwrap();
        agent.add_vm("fuse-before", Some("the fleet of the last process"));
        agent.add_vm("other-before", Some("not under our prefix"));
        let fuse = Orchestrator::with(Options {
            settings: Settings {
                destroy_unknown_on_boot,
                ..settings()
            },
            ..Options::default()
        })
        .await;
        fuse.register("h", &agent).await;
        cycle(&fuse, &agent).await;
        // The second begins when the first has heard the host.
        cycle(&fuse, &agent).await;
        agent.add_vm("fuse-later", Some("another fleet"));
        for _ in 0..2 {
            cycle(&fuse, &agent).await;
        }
        let quarantined = |count: u32| format!("orchestrator_reconcile_quarantined_vms {count}\n");
        let (left, count) = match destroy_unknown_on_boot {
            false => (vec!["fuse-before", "fuse-later", "other-before"], 1),
            true => (vec!["fuse-later", "other-before"], 0),
        };
        fuse.until("/metrics", |answer| {
            answer.text.contains(&quarantined(count))
        })
        .await;
        assert_eq!(agent.vms(), left);
        fuse.stop().await;
    }
}

#[tokio::test]
async fn a_preview_says_what_a_cycle_would_do_and_does_nothing() {
    let (fuse, agent) = with_agent(Options {
        settings: Settings {
            task_stuck_timeout: Duration::from_millis(1),
            ..settings()
        },
        ..Options::default()
    })
    .await;
    cycle(&fuse, &agent).await;
    for task in ["lost", "stuck", "stays"] {
        let runtime = if task == "stuck" { 0 } else { 3600 };
        let body = json!({"task_id": task, "spec": {"max_runtime_seconds": runtime}});
        fuse.create(&body).await.is(201);
    }
    let fleet = fuse.control.store().fleet_id().to_string();
    agent.add_vm("fuse-orphan", Some(&fleet));
    agent.add_vm("fuse-stranger", Some("another fleet"));
    agent.lose_vm("fuse-lost");
    let (calls, vms) = (agent.calls().len(), agent.vms());
    let preview = fuse.control.reconcile_preview().await.unwrap();
    let steps: Vec<(&str, &str)> = preview
        .steps
        .iter()
        .map(|step| (step.pass, step.entity.as_str()))
        .collect();
    assert_eq!(
        steps,
        [
            ("missing", "fuse-lost"),
            ("orphans", "fuse-orphan"),
            ("stuck", "fuse-stuck")
        ]
    );
    let stranger = (agent.url(), "fuse-stranger".to_owned());
    assert_eq!((preview.tracked, &*preview.foreign), (3, &[stranger][..]));
    let text = preview.to_string();
    assert!(text.contains("\nforeign      fuse-stranger "), "{text}");
    assert!(
        text.contains("if it is still so in the next cycle"),
        "{text}"
    );
    assert!(
        text.ends_with("3 environments, 1 VMs of others left alone, 3 things to do\n"),
        "{text}"
    );
    assert_eq!(agent.vms(), vms);
    let asked: Vec<String> = agent.calls().split_off(calls);
    assert!(
        asked
            .iter()
            .all(|call| call == "list" || call == "capacity"),
        "{asked:?}"
    );
    let lost = fuse.get("/v1/environments/fuse-lost").await.is(200);
    assert_eq!(lost["state"], "running");
    fuse.stop().await;
}
