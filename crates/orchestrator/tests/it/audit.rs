//! The audit log and the dead letters, read back.

use std::{path::Path, time::Duration};

use fuse_control::Settings;
use fuse_testkit::fake_agent::Step;
use serde_json::{Value, json};

use crate::support::{Options, Orchestrator, with_agent};

fn column<'a>(page: &'a Value, list: &str, key: &str) -> Vec<&'a str> {
    page[list]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry[key].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn the_log_is_read_newest_first_filtered_and_paged() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.create(&json!({"task_id": "b"})).await.is(201);
    assert_eq!(fuse.delete("/v1/environments/fuse-a").await.status, 204);

    let of_a = fuse
        .get("/v1/audit?entity_type=vm&entity_id=fuse-a")
        .await
        .is(200);
    assert_eq!(
        column(&of_a, "audit_events", "type"),
        [
            "vm.removed",
            "vm.destroying",
            "vm.running",
            "vm.scheduled",
            "vm.provisioning"
        ]
    );
    assert_eq!(
        of_a["audit_events"][1]["payload"]["reason"],
        "manual_destroy"
    );
    assert!(of_a.get("next_cursor").is_none());

    let all = fuse.get("/v1/audit?limit=200").await.is(200);
    let mut paged = Vec::new();
    let mut path = "/v1/audit?limit=3".to_owned();
    loop {
        let page = fuse.get(&path).await.is(200);
        paged.extend(page["audit_events"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/audit?limit=3&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(&paged, all["audit_events"].as_array().unwrap());

    let running = fuse.get("/v1/audit?type=vm.running").await.is(200);
    assert_eq!(
        column(&running, "audit_events", "entity_id"),
        ["fuse-b", "fuse-a"]
    );
    let at = running["audit_events"][0]["created_at"].as_str().unwrap();
    let before = fuse
        .get(&format!("/v1/audit?type=vm.running&until={at}"))
        .await
        .is(200);
    assert_eq!(column(&before, "audit_events", "entity_id"), ["fuse-a"]);
    let since = fuse
        .get(&format!("/v1/audit?type=vm.running&since={at}"))
        .await
        .is(200);
    assert_eq!(column(&since, "audit_events", "entity_id"), ["fuse-b"]);
    let nothing = fuse.get("/v1/audit?type=no.such").await.is(200);
    assert_eq!(nothing, json!({"audit_events": []}));

    fuse.get("/v1/audit?since=yesterday").await.is_error(
        400,
        "invalid_argument",
        "since is not a time (RFC 3339)",
    );
    for path in [
        "/v1/audit?cursor=x",
        "/v1/audit?cursor=eyJpZCI6ImEifQ",
        "/v1/dead-letters?cursor=x",
    ] {
        fuse.get(path)
            .await
            .is_error(400, "invalid_argument", "invalid pagination cursor");
    }
    fuse.stop().await;
}

#[tokio::test]
async fn what_is_given_up_on_is_noted() {
    let settings = Settings {
        reconcile_interval: Duration::from_millis(50),
        orphan_max_retries: 2,
        ..Settings::default()
    };
    let (fuse, agent) = with_agent(Options {
        settings,
        ..Options::default()
    })
    .await;
    let fleet = fuse.control.store().fleet_id().to_string();
    for name in ["fuse-y", "fuse-x"] {
        agent.add_vm(name, Some(&fleet));
    }
    agent.fail(Step::Delete, 1000, 500, "stuck");
    fuse.until("/v1/dead-letters", |answer| {
        answer.json["dead_letters"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    })
    .await;
    let page = fuse.get("/v1/dead-letters?limit=1").await.is(200);
    let letter = &page["dead_letters"][0];
    assert_eq!(
        (
            &letter["kind"],
            &letter["entity_id"],
            &letter["retry_count"]
        ),
        (&json!("orphan_destroy"), &json!("fuse-x"), &json!(2))
    );
    assert!(letter.get("task_id").is_none());
    let cursor = page["next_cursor"].as_str().unwrap();
    let page = fuse
        .get(&format!("/v1/dead-letters?cursor={cursor}"))
        .await
        .is(200);
    assert_eq!(column(&page, "dead_letters", "entity_id"), ["fuse-y"]);
    let audit = fuse
        .get("/v1/audit?type=vm.orphan_dead_lettered")
        .await
        .is(200);
    assert_eq!(column(&audit, "audit_events", "entity_id").len(), 2);
    fuse.stop().await;
}

#[tokio::test]
async fn an_old_snapshot_that_its_host_cannot_delete_is_noted() {
    let settings = Settings {
        reconcile_interval: Duration::from_millis(100),
        snapshot_retention: Duration::from_secs(1),
        ..Settings::default()
    };
    let (fuse, agent) = with_agent(Options {
        settings,
        ..Options::default()
    })
    .await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    agent.fail(Step::DeleteSnapshot, 1, 500, "io error");
    let taken = fuse.post_raw("/v1/environments/fuse-a/snapshots", "").await;
    let id = taken.is(201)["id"].clone();
    // The newest of an environment that there is stays.
    fuse.delete("/v1/environments/fuse-a").await.is(204);
    fuse.until("/v1/audit?type=snapshot.gc_failed", |answer| {
        answer.text.contains(id.as_str().unwrap())
    })
    .await;
    let failed = fuse.audit("snapshot.gc_failed").await;
    assert_eq!(failed.as_array().unwrap().len(), 1, "{failed}");
    assert_eq!(failed[0]["entity"], "vm fuse-a");
    assert_eq!(failed[0]["payload"]["snapshot_id"], id);
    let error = failed[0]["payload"]["error"].as_str().unwrap();
    assert!(error.contains("io error"), "{error}");
    let path = format!("/v1/snapshots/{}", id.as_str().unwrap());
    let kept = fuse.get(&path).await.is(200);
    assert_eq!(
        (&kept["state"], kept["last_error"].as_str()),
        (&json!("error"), Some(error))
    );
    fuse.stop().await;
}

/// What the log knows of everything that callers can do: types by what they are about, each
/// once, and never a value that is secret.
#[tokio::test]
async fn everything_that_callers_do_is_noted() {
    let (fuse, agent) = with_agent(Options::default()).await;
    agent.serve_surfaces();
    let vm = "/v1/environments/fuse-a";
    let post = async |path: String| fuse.post_raw(&path, "").await;
    let body = json!({"task_id": "a", "secrets": {"PW": "hunter2hunter2"}});
    fuse.create(&body).await.is(201);
    let snapshots = [
        post(format!("{vm}/snapshots")).await.is(201),
        post(format!("{vm}/snapshots")).await.is(201),
    ];
    let path = |n: usize| format!("/v1/snapshots/{}", snapshots[n]["id"].as_str().unwrap());
    post(format!("{}?action=restore", path(1))).await.is(204);
    assert_eq!(fuse.delete(&path(1)).await.status, 204);
    post(format!("{vm}?action=rotate-token")).await.is(204);
    let fork = post(format!("{vm}?action=fork")).await.is(201);
    post(format!("{vm}?action=drain")).await.is(200);
    let fork = format!("/v1/environments/{}", fork["id"].as_str().unwrap());
    for path in [vm, fork.as_str()] {
        assert_eq!(fuse.delete(path).await.status, 204);
    }
    agent.fail(Step::Create, 1, 500, "no disk");
    assert_eq!(fuse.create(&body).await.status, 500);
    for action in ["cordon", "uncordon", "drain"] {
        post(format!("/v1/hosts/h?action={action}")).await.is(204);
    }
    assert_eq!(fuse.delete("/v1/hosts/h").await.status, 204);
    let stranger = crate::support::http_client().get(format!("{}/v1/hosts", fuse.base));
    assert_eq!(Orchestrator::send(stranger).await.status, 401);

    let wanted = [
        ("api", "auth.failed"),
        ("host", "host.cordoned"),
        ("host", "host.draining"),
        ("host", "host.registered"),
        ("host", "host.removed"),
        ("host", "host.uncordoned"),
        ("task", "task.assigned"),
        ("task", "task.failed"),
        ("task", "task.running"),
        ("vm", "secrets.deployed"),
        ("vm", "secrets.recovered"),
        ("vm", "snapshot.created"),
        ("vm", "snapshot.deleted"),
        ("vm", "snapshot.restored"),
        ("vm", "vm.destroying"),
        ("vm", "vm.drained"),
        ("vm", "vm.draining"),
        ("vm", "vm.forked"),
        ("vm", "vm.provision_failed"),
        ("vm", "vm.provisioning"),
        ("vm", "vm.removed"),
        ("vm", "vm.running"),
        ("vm", "vm.scheduled"),
        ("vm", "vm.token_rotated"),
    ];
    let log = fuse
        .until("/v1/audit?limit=200", |answer| {
            answer.text.contains("auth.failed")
        })
        .await;
    let entries = log.json["audit_events"].as_array().unwrap();
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap().to_owned();
    let noted: std::collections::BTreeSet<(String, String)> = entries
        .iter()
        .map(|entry| (text(entry, "entity_type"), text(entry, "type")))
        .collect();
    let noted: Vec<(&str, &str)> = noted.iter().map(|(of, kind)| (&**of, &**kind)).collect();
    assert_eq!(noted, wanted);
    let deployed = entries
        .iter()
        .find(|entry| entry["type"] == "secrets.deployed");
    assert!(deployed.unwrap()["payload"].to_string().contains("\"PW\""));
    for secret in ["hunter2", "master-token", fuse_testkit::fake_agent::TOKEN] {
        assert!(!log.text.contains(secret), "{secret}");
    }
    fuse.stop().await;
}

/// The types that the code knows, with their names in the log.
fn types() -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/src/audit.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let (_, list) = source.split_once("\naudit_kinds! {").unwrap();
    let (list, _) = list.split_once("\n}").unwrap();
    let quoted = list.lines().filter_map(|line| line.split('"').nth(1));
    quoted.map(str::to_owned).collect()
}

/// A new type needs a test that names it.
#[test]
fn every_type_of_entry_is_in_a_test() {
    // Nobody reports a task as done: there is no route for it.
    const UNUSED: [&str; 1] = ["task.completed"];
    let mut text = String::new();
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it")];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                text += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    // The one that is not used stands in this list alone.
    let is_tested = |name: &str| {
        let quoted = text.matches(&format!("\"{name}\"")).count();
        quoted > usize::from(UNUSED.contains(&name)) || text.contains(&format!("type={name}"))
    };
    let types = types();
    assert!(types.len() > 40, "{types:?}");
    for name in &types {
        assert_ne!(is_tested(name), UNUSED.contains(&&**name), "{name}");
    }
}
