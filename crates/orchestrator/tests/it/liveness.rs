//! Hosts are watched: who does not answer, or does not boot, gets no placements.

use std::time::Duration;

use fuse_control::Settings;
use fuse_testkit::fake_agent::{FakeAgent, Step};
use serde_json::{Value, json};

use crate::support::{Options, Orchestrator, with_agent};

fn options() -> Options {
    Options {
        settings: Settings {
            host_check_interval: Duration::from_millis(50),
            reconcile_interval: Duration::from_secs(3600),
            ..Settings::default()
        },
        ..Options::default()
    }
}

async fn until_agent(fuse: &Orchestrator, host: &str, accept: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/v1/hosts/{host}");
    let answer = fuse
        .until(&path, |answer| accept(&answer.json["agent"]))
        .await;
    answer.json["agent"].clone()
}

async fn audit_of(fuse: &Orchestrator, host: &str) -> Vec<String> {
    let path = format!("/v1/audit?entity_type=host&entity_id={host}");
    let log = fuse.get(&path).await.is(200);
    let mut kinds: Vec<String> = log["audit_events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["type"].as_str().unwrap().to_owned())
        .collect();
    kinds.reverse();
    kinds
}

#[tokio::test]
async fn a_host_that_does_not_answer_gets_no_placements() {
    let (fuse, mut agent) = with_agent(options()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let known = until_agent(&fuse, "h", |agent| agent["guests"] == 1).await;
    assert_eq!(
        (
            &known["version"],
            &known["disk_free_gb"],
            &known["reachable"]
        ),
        (&json!("9.8.7"), &json!(500), &json!(true))
    );
    agent.stop().await;
    let gone = until_agent(&fuse, "h", |agent| agent["reachable"] == false).await;
    assert!(
        gone["error"].as_str().unwrap().contains("unreachable"),
        "{gone}"
    );
    assert_eq!(gone["guests"], 1, "what was known stays");

    let refused = fuse.create(&json!({"task_id": "b"})).await;
    assert_eq!((refused.status, refused.code()), (503, "unavailable"));
    assert_eq!(
        refused.json["error"]["details"],
        json!({"rejected_agent": "1"})
    );
    let pinned = fuse
        .create(&json!({"task_id": "c", "spec": {"host_id": "h"}}))
        .await;
    let start = "pinned host cannot take this environment: host \"h\" does not answer: ";
    assert!(pinned.message().starts_with(start), "{}", pinned.text);
    // What runs there stays.
    let record = fuse.get("/v1/environments/fuse-a").await.is(200);
    assert_eq!(record["state"], "running");

    agent.start_again().await.unwrap();
    until_agent(&fuse, "h", |agent| agent["reachable"] == true).await;
    fuse.create(&json!({"task_id": "d"})).await.is(201);
    assert_eq!(
        audit_of(&fuse, "h").await,
        ["host.registered", "host.unreachable", "host.reachable"]
    );
    fuse.stop().await;
}

#[tokio::test]
async fn unreachable_hosts_are_tried_when_the_operator_says_so() {
    let mut options = options();
    options.settings.exclude_unreachable_hosts = false;
    let (fuse, mut agent) = with_agent(options).await;
    agent.stop().await;
    until_agent(&fuse, "h", |agent| agent["reachable"] == false).await;
    let refused = fuse.create(&json!({"task_id": "a"})).await;
    assert!(
        refused.message().starts_with("cannot boot the vm"),
        "{}",
        refused.text
    );
    fuse.stop().await;
}

#[tokio::test]
async fn a_host_on_which_boots_fail_is_left_out_until_one_works() {
    let (fuse, agent) = with_agent(options()).await;
    let other = FakeAgent::start().await.unwrap();
    // Two in a row are not enough, and one that works starts the count anew.
    agent.fail(Step::Create, 2, 500, "no kvm");
    for task in ["a", "b"] {
        assert_eq!(fuse.create(&json!({"task_id": task})).await.status, 500);
    }
    let counted = until_agent(&fuse, "h", |agent| agent["failed_boots"] == 2).await;
    assert!(
        counted["last_boot_error"]
            .as_str()
            .unwrap()
            .contains("no kvm"),
        "{counted}"
    );
    fuse.create(&json!({"task_id": "c"})).await.is(201);
    until_agent(&fuse, "h", |agent| agent.get("failed_boots").is_none()).await;
    // What the caller chose is no failure of the host.
    agent.fail(Step::Create, 3, 500, "no such image");
    for task in ["d", "e", "f"] {
        let body = json!({"task_id": task, "spec": {"image": "mine"}});
        assert_eq!(fuse.create(&body).await.status, 500);
    }
    agent.fail(Step::Create, 3, 409, "in the way");
    for task in ["g", "i", "j"] {
        fuse.create(&json!({"task_id": task})).await;
    }
    assert!(
        fuse.get("/v1/hosts/h").await.is(200)["agent"]
            .get("failed_boots")
            .is_none()
    );

    // Three creates, then the first try of the watch.
    agent.fail(Step::Create, 4, 500, "no kvm");
    for task in ["k", "l", "m"] {
        assert_eq!(fuse.create(&json!({"task_id": task})).await.status, 500);
    }
    let out = until_agent(&fuse, "h", |agent| agent["failed_boots"] == 4).await;
    assert!(out.get("quarantined_at").is_some(), "{out}");
    let refused = fuse.create(&json!({"task_id": "n"})).await;
    assert_eq!(
        refused.json["error"]["details"],
        json!({"rejected_quarantine": "1"})
    );
    fuse.register("o", &other).await;
    let placed = fuse.create(&json!({"task_id": "n2"})).await.is(201);
    assert_eq!(placed["host_id"], "o");

    // The operator's word counts.
    assert_eq!(
        fuse.post("/v1/hosts/h?action=uncordon", &json!({}))
            .await
            .status,
        204
    );
    let pinned = json!({"task_id": "p", "spec": {"host_id": "h"}});
    fuse.create(&pinned).await.is(201);

    // Out again, and back in by a boot that works.
    agent.fail(Step::Create, 3, 500, "no kvm");
    for task in ["q", "r", "s"] {
        let body = json!({"task_id": task, "spec": {"host_id": "h"}});
        assert_eq!(fuse.create(&body).await.status, 500);
    }
    until_agent(&fuse, "h", |agent| agent.get("failed_boots").is_none()).await;
    assert_eq!(
        agent.vms(),
        ["fuse-c", "fuse-p"],
        "the VM of the try is gone"
    );
    let kinds = audit_of(&fuse, "h").await;
    let story: Vec<&str> = kinds.iter().map(String::as_str).skip(1).collect();
    assert_eq!(
        story,
        [
            "host.quarantined",
            "host.uncordoned",
            "host.readmitted",
            "host.quarantined",
            "host.readmitted"
        ]
    );
    fuse.stop().await;
}
