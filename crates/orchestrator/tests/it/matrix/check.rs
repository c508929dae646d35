//! What must be true after a recovery.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fuse_model::{Snapshot, SnapshotState};
use fuse_store::{EnvironmentFilter, Page, SnapshotFilter, Store, Vault};
use fuse_testkit::{fake_agent::FakeAgent, until};
use reqwest::Method;
use serde_json::json;

use super::{fleet::Fleet, operation::Operation};
use crate::program::{KEY, Program, wait};

/// Nothing here takes as long; waiting longer means that it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

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
pub(super) async fn check_answers(
    fleet: &Fleet,
    fuse: &Program,
    operation: Operation,
    place: &str,
) {
    check_hosts(fleet, fuse, place).await;
    let get = async |path: &str| fuse.call(Method::GET, path, None).await;
    // What had been acknowledged before is as it was.
    let (_, bystander) = get("/v1/environments/fuse-bystander").await;
    assert_eq!(bystander["state"], "running", "{place}");
    let (status, subject) = get("/v1/environments/fuse-subject").await;
    let (_, task) = get("/v1/tasks/subject").await;
    match operation {
        Operation::Create | Operation::Undone | Operation::Pull => match status {
            // Adopted, or accepted before it could die.
            200 => assert_eq!(task["run_status"], "running", "{place}: {task}"),
            _ => assert!(
                task.get("error").is_some() || task["run_status"] == "failed",
                "{place}: {task}"
            ),
        },
        Operation::Fork
        | Operation::Rotate
        | Operation::Snapshot
        | Operation::Background
        | Operation::Restore
        | Operation::Delete => {
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
    // The database may be busy with the fleets of other places.
    let (open, recorded) = until("the table", PATIENCE, || async {
        let filter = EnvironmentFilter::default();
        let environments = store.environment_list(&filter, &everything()).await?;
        let filter = SnapshotFilter::default();
        let snapshots = store.snapshot_list(&filter, &everything()).await?;
        Ok((environments.items, snapshots.items))
    })
    .await
    .unwrap();
    for record in open {
        assert!(record.operation.is_none(), "{place}: {record:?}");
    }
    // One that was answered before it was taken may say that there is nothing.
    let (failed, ready): (Vec<_>, Vec<_>) = recorded
        .into_iter()
        .filter(|one| !one.id.as_str().starts_with("fork-seed-"))
        .partition(|one| one.state == SnapshotState::Error);
    let ids =
        |of: &[Snapshot]| -> BTreeSet<String> { of.iter().map(|one| one.id.to_string()).collect() };
    let (failed, ready) = (ids(&failed), ids(&ready));
    let kept: BTreeSet<String> = fleet.agents.iter().flat_map(FakeAgent::snapshots).collect();
    let kept: BTreeSet<String> = kept.difference(&failed).cloned().collect();
    assert_eq!(kept, ready, "{place}: snapshots");
    store.close().await;
}

/// One page that has room for whatever a long soak leaves.
fn everything<T>() -> Page<T> {
    Page {
        after: None,
        limit: 100_000,
    }
}

fn hex_key() -> [u8; 32] {
    std::array::from_fn(|at| u8::from_str_radix(&KEY[2 * at..2 * at + 2], 16).unwrap())
}
