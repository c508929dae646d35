//! Snapshots and forks, against a fake host.

use std::time::Duration;

use fuse_control::Settings;
use fuse_testkit::fake_agent::{FakeAgent, Step};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Options, Orchestrator, with_agent};

const SNAPSHOTS: &str = "/v1/environments/fuse-a/snapshots";
const FORK: &str = "/v1/environments/fuse-a?action=fork";

async fn running(settings: Settings) -> (Orchestrator, FakeAgent) {
    let options = Options {
        settings,
        ..Options::default()
    };
    let (fuse, agent) = with_agent(options).await;
    let body = json!({
        "task_id": "a", "spec": {"cpus": 2}, "secrets": {"S": "hunter2hunter2"},
        "expose": [{"port": 80, "as": "web"}],
        "healthcheck": {"exec": ["true"]}, "desktop": {"width": 800, "height": 600}
    });
    fuse.create(&body).await.is(201);
    (fuse, agent)
}

async fn take(fuse: &Orchestrator, body: Value) -> Value {
    fuse.post(SNAPSHOTS, &body).await.is(201)
}

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap()
}

async fn state(fuse: &Orchestrator, id: &str) -> Value {
    fuse.get(&format!("/v1/snapshots/{id}")).await.is(200)["state"].clone()
}

#[tokio::test]
async fn a_snapshot_is_recorded_as_asked_for() {
    let (fuse, _agent) = running(Settings::default()).await;
    let first = fuse.post_raw(SNAPSHOTS, "").await.is(201);
    let wanted = json!({
        "vm_id": "fuse-a", "task_id": "a", "tenant_id": "a", "host_id": "h", "mode": "manual",
        "state": "ready", "kind": "disk", "arch": "amd64", "size_bytes": 1_048_576
    });
    for (key, value) in wanted.as_object().unwrap() {
        assert_eq!(&first[key], value, "{key}: {first}");
    }
    for absent in [
        "parent_snapshot_id",
        "comment",
        "name",
        "metadata",
        "retention_until",
        "exports",
    ] {
        assert_eq!(first.get(absent), None, "{absent}");
    }
    let second = take(
        &fuse,
        json!({"comment": "c", "metadata": {"name": "n"}, "live": true, "mode": "mine",
               "retention_seconds": 60, "export_ref": "s3://x", "layer_key": "k"}),
    )
    .await;
    assert_eq!(second["parent_snapshot_id"], first["id"]);
    assert_eq!(
        (
            &second["comment"],
            &second["name"],
            &second["kind"],
            &second["mode"]
        ),
        (&json!("c"), &json!("n"), &json!("live"), &json!("mine"))
    );
    assert_eq!(second["metadata"], json!({"comment": "c", "name": "n"}));
    assert_eq!(second["exports"][0]["status"], "pending");
    assert!(second["retention_until"].is_string());
    // A layer belongs to whoever builds it, here the master.
    assert_eq!(second.get("tenant_id"), None);
    let path = format!("/v1/snapshots/{}", id(&second));
    let read = fuse.get(&path).await.is(200);
    assert_eq!(read, second);
    assert_eq!(read["export_ref"], "s3://x");

    let list = fuse.get("/v1/snapshots?vm_id=fuse-a&limit=1").await.is(200);
    assert_eq!(list["snapshots"][0]["id"], second["id"]);
    let cursor = list["next_cursor"].as_str().unwrap();
    let next = format!("/v1/snapshots?vm_id=fuse-a&limit=1&cursor={cursor}");
    let list = fuse.get(&next).await.is(200);
    assert_eq!(list["snapshots"][0]["id"], first["id"]);
    assert_eq!(list.get("next_cursor"), None);
    for (query, count) in [
        ("name=n", 1),
        ("state=error", 0),
        ("state=x", 0),
        ("arch=x86_64", 2),
    ] {
        let list = fuse.get(&format!("/v1/snapshots?{query}")).await.is(200);
        assert_eq!(
            list["snapshots"].as_array().unwrap().len(),
            count,
            "{query}"
        );
    }
    fuse.get("/v1/snapshots?cursor=!").await.is_error(
        400,
        "invalid_argument",
        "invalid pagination cursor",
    );
    fuse.stop().await;
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused() {
    let (fuse, agent) = running(Settings::default()).await;
    fuse.post_raw("/v1/environments/x/snapshots", "")
        .await
        .is_error(404, "not_found", "vm x not found");
    agent.fail(Step::Snapshot, 1, 507, "12 MiB are missing");
    let answer = fuse.post_raw(SNAPSHOTS, "").await;
    assert_eq!((answer.status, answer.code()), (500, "internal"));
    assert!(
        answer.message().contains("12 MiB are missing"),
        "{}",
        answer.text
    );
    agent.fail(Step::Snapshot, 1, 404, "not found");
    fuse.post_raw(SNAPSHOTS, "").await.is_error(
        501,
        "unimplemented",
        "snapshot not supported by provider",
    );
    // One at a time, and the environment is free again whatever came of it.
    let mut gate = agent.hold(Step::Snapshot);
    let first = fuse.post_raw(SNAPSHOTS, "");
    let second = async {
        gate.reached().await;
        let answer = fuse.post_raw(SNAPSHOTS, "").await;
        gate.open();
        answer
    };
    let (first, second) = tokio::join!(first, second);
    first.is(201);
    assert_eq!((second.status, second.code()), (409, "conflict"));
    fuse.post_raw("/v1/environments/fuse-a?action=drain", "")
        .await
        .is(200);
    fuse.post_raw(SNAPSHOTS, "").await.is_error(
        409,
        "conflict",
        "vm not running: vm fuse-a is draining",
    );
    fuse.stop().await;
}

/// As an interrupted `fuse build` does: it leaves the call and destroys the builder. What the host has then, a
/// record names, and the other way round.
#[tokio::test]
async fn an_environment_that_is_destroyed_under_its_snapshot_leaves_no_half_of_one() {
    for (step, kept) in [(Step::Snapshot, 0), (Step::SnapshotTaken, 1)] {
        let (fuse, agent) = running(Settings::default()).await;
        let mut gate = agent.hold(step);
        let layer = json!({"mode": "build", "layer_key": "k"});
        let call = Orchestrator::send(fuse.request(Method::POST, SNAPSHOTS).json(&layer));
        tokio::select! {
            _ = call => panic!("it was answered"),
            () = gate.reached() => {}
        }
        fuse.delete("/v1/environments/fuse-a").await.is(204);
        assert_eq!(agent.vms(), Vec::<String>::new());
        gate.open();
        let recorded = |answer: &Answer| -> Vec<String> {
            let list = answer.json["snapshots"].as_array().unwrap();
            list.iter().map(|one| id(one).to_owned()).collect()
        };
        let all = |answer: &Answer| recorded(answer).len() == kept;
        let list = fuse.until("/v1/snapshots?mode=build", all).await;
        let recorded = recorded(&list);
        assert_eq!(agent.snapshots(), recorded, "{step:?}");
        fuse.stop().await;
        assert_eq!(agent.snapshots().len(), kept, "{step:?}");
    }
}

#[tokio::test]
async fn the_stub_has_no_snapshots() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.post_raw(SNAPSHOTS, "").await.is_error(
        501,
        "unimplemented",
        "snapshot not supported by provider",
    );
    fuse.post_raw(FORK, "")
        .await
        .is_error(501, "unimplemented", "fork not supported by provider");
    fuse.stop().await;
}

#[tokio::test]
async fn quotas_count_snapshots_and_bytes() {
    let by_count = Settings {
        snapshot_max_count: 1,
        ..Settings::default()
    };
    let (fuse, _agent) = running(by_count).await;
    take(&fuse, json!({})).await;
    fuse.post_raw(SNAPSHOTS, "").await.is_error(
        409,
        "conflict",
        "snapshot quota exceeded: a has 1 of 1 snapshots",
    );
    let forked = fuse.post_raw(FORK, "").await;
    assert_eq!((forked.status, forked.code()), (409, "conflict"));
    // Layers are not counted.
    take(&fuse, json!({"mode": "build", "layer_key": "k"})).await;
    fuse.stop().await;

    let by_bytes = Settings {
        snapshot_max_bytes: 1 << 20,
        ..Settings::default()
    };
    let (fuse, _agent) = running(by_bytes).await;
    take(&fuse, json!({})).await;
    assert_eq!(fuse.post_raw(SNAPSHOTS, "").await.status, 409);
    fuse.stop().await;
}

#[tokio::test]
async fn a_restore_puts_the_files_back_and_sets_the_guest_up() {
    let (fuse, agent) = running(Settings::default()).await;
    agent.write("fuse-a", "/data", b"old");
    let snapshot = take(&fuse, json!({})).await;
    agent.write("fuse-a", "/data", b"new");
    let token = agent.file("fuse-a", "/fuse/auth-token").unwrap();
    let restore = format!("/v1/snapshots/{}?action=restore", id(&snapshot));
    fuse.post_raw(&restore, "").await.is(204);
    assert_eq!(agent.file("fuse-a", "/data").unwrap(), b"old");
    assert_ne!(agent.file("fuse-a", "/fuse/auth-token").unwrap(), token);
    assert_eq!(
        agent.file("fuse-a", "/fuse/secrets.json").unwrap(),
        br#"{"S":"hunter2hunter2"}"#
    );
    assert!(agent.serves("fuse-a"));
    assert_eq!(state(&fuse, id(&snapshot)).await, "ready");

    // The bytes are gone: the record says so, for good.
    agent.lose_snapshot(id(&snapshot));
    let gone = format!(
        "snapshot not found: snapshot {} is missing from provider",
        id(&snapshot)
    );
    fuse.post_raw(&restore, "")
        .await
        .is_error(404, "not_found", &gone);
    let path = format!("/v1/snapshots/{}", id(&snapshot));
    let shown = fuse.get(&path).await.is(200);
    assert_eq!(
        (&shown["state"], &shown["last_error"]),
        (&json!("error"), &json!("snapshot missing from provider"))
    );
    let refused = fuse.post_raw(&restore, "").await;
    assert_eq!(refused.status, 409);
    assert!(refused.message().starts_with("snapshot invalid state"));

    let other = take(&fuse, json!({})).await;
    agent.fail(Step::Restore, 1, 500, "no room");
    let restore = format!("/v1/snapshots/{}?action=restore", id(&other));
    let failed = fuse.post_raw(&restore, "").await;
    assert_eq!(failed.status, 500);
    assert!(failed.message().contains("no room"), "{}", failed.text);
    assert_eq!(state(&fuse, id(&other)).await, "error");
    fuse.post_raw("/v1/snapshots/x?action=restore", "")
        .await
        .is_error(404, "not_found", "snapshot x not found");
    fuse.stop().await;
}

#[tokio::test]
async fn only_leaves_are_deleted_and_bytes_go_first() {
    let (fuse, agent) = running(Settings::default()).await;
    let parent = take(&fuse, json!({})).await;
    let child = take(&fuse, json!({})).await;
    let path = |snapshot: &Value| format!("/v1/snapshots/{}", id(snapshot));
    let refused = fuse.delete(&path(&parent)).await;
    assert_eq!(refused.status, 409);
    assert!(refused.message().starts_with("snapshot has children"));
    agent.fail(Step::DeleteSnapshot, 1, 409, "a vm boots from it");
    let refused = fuse.delete(&path(&child)).await;
    assert_eq!((refused.status, refused.code()), (409, "conflict"));
    assert_eq!(state(&fuse, id(&child)).await, "ready");
    agent.fail(Step::DeleteSnapshot, 1, 500, "io error");
    assert_eq!(fuse.delete(&path(&child)).await.status, 500);
    assert_eq!(state(&fuse, id(&child)).await, "error");
    // An agent that does not know the route has not deleted anything.
    agent.fail(Step::DeleteSnapshot, 1, 404, "not found");
    assert_eq!(fuse.delete(&path(&child)).await.status, 500);
    fuse.delete(&path(&child)).await.is(204);
    assert_eq!(agent.snapshots(), [id(&parent)]);
    // Its environment may be gone, and so may its bytes.
    fuse.delete("/v1/environments/fuse-a").await.is(204);
    agent.lose_snapshot(id(&parent));
    fuse.delete(&path(&parent)).await.is(204);
    assert_eq!(fuse.delete(&path(&parent)).await.status, 404);
    fuse.stop().await;
}

#[tokio::test]
async fn old_snapshots_are_collected_once_nothing_needs_them() {
    let settings = Settings {
        reconcile_interval: Duration::from_millis(100),
        snapshot_retention: Duration::from_secs(1),
        ..Settings::default()
    };
    let (fuse, agent) = running(settings).await;
    take(&fuse, json!({})).await;
    let newest = take(&fuse, json!({})).await;
    let layer = json!({"mode": "build", "layer_key": "k", "retention_seconds": 1});
    let layer = take(&fuse, layer).await;
    fuse.delete("/v1/environments/fuse-a").await.is(204);
    agent.fail(Step::DeleteSnapshot, 1, 409, "a vm boots from it");
    // The layer names the newest as its parent, so both stay until it goes.
    let path = format!("/v1/snapshots/{}", id(&layer));
    assert_eq!(fuse.delete(&path).await.status, 409);
    assert_eq!(state(&fuse, id(&newest)).await, "ready");
    fuse.delete(&path).await.is(204);
    fuse.until("/v1/snapshots", |answer| {
        answer.json["snapshots"].as_array().unwrap().is_empty()
    })
    .await;
    assert!(agent.snapshots().is_empty());
    let deleted = fuse.get("/v1/audit?type=snapshot.gc_deleted").await.is(200);
    assert_eq!(deleted["audit_events"].as_array().unwrap().len(), 2);
    fuse.stop().await;
}

#[tokio::test]
async fn layers_are_resolved_by_key_and_architecture() {
    let (fuse, _agent) = running(Settings::default()).await;
    let layer = take(&fuse, json!({"mode": "build", "layer_key": "k"})).await;
    let resolve = async |query: &str| fuse.get(&format!("/v1/snapshots/resolve?{query}")).await;
    let hit = resolve("layer_key=k&arch=x86_64").await.is(200);
    assert_eq!(
        (&hit["found"], &hit["snapshot"]["id"]),
        (&json!(true), &layer["id"])
    );
    let other = resolve("layer_key=k&arch=aarch64").await.is(200);
    let why = json!(["there is one for amd64, not for arm64"]);
    assert_eq!(other, json!({"found": false, "miss_detail": why}));
    for miss in ["layer_key=l&arch=amd64", "layer_key=k&arch=mips"] {
        assert_eq!(
            resolve(miss).await.is(200),
            json!({"found": false}),
            "{miss}"
        );
    }
    resolve("arch=amd64")
        .await
        .is_error(400, "invalid_argument", "layer_key is required");
    resolve("layer_key=k")
        .await
        .is_error(400, "invalid_argument", "arch is required");
    fuse.stop().await;
}

#[tokio::test]
async fn a_repeated_request_makes_one_snapshot() {
    let (fuse, agent) = running(Settings::default()).await;
    let post = async |body: Value, key: &str| {
        let request = fuse.request(Method::POST, SNAPSHOTS).json(&body);
        Orchestrator::send(request.header("Idempotency-Key", key)).await
    };
    agent.fail(Step::Snapshot, 1, 500, "not now");
    assert_eq!(post(json!({"comment": "c"}), "k").await.status, 500);
    let first = post(json!({"comment": "c"}), "k").await;
    let again = post(json!({"comment": "c"}), "k").await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(first.is(201), again.is(201));
    assert_eq!(agent.snapshots().len(), 1);
    assert_eq!(post(json!({"comment": "d"}), "k").await.status, 409);
    fuse.stop().await;
}

#[tokio::test]
async fn a_fork_is_an_environment_of_its_own() {
    let (fuse, agent) = running(Settings::default()).await;
    agent.write("fuse-a", "/data", b"source");
    let fork = fuse.post(FORK, &json!({"comment": "branch"})).await.is(201);
    let name = id(&fork);
    assert!(
        name.starts_with("fuse-fork-") && name.len() == "fuse-fork-".len() + 32,
        "{name}"
    );
    assert_eq!(fork["task_id"], name.strip_prefix("fuse-").unwrap());
    assert_eq!(
        (&fork["state"], &fork["host_id"]),
        (&json!("running"), &json!("h"))
    );
    assert_eq!(fork["spec"], json!({"cpus": 2}));
    assert_eq!(fork["endpoints"][0]["as"], "web");
    assert_eq!(fork.get("warnings"), None);
    assert_eq!(agent.file(name, "/data").unwrap(), b"source");
    assert_ne!(
        agent.file(name, "/fuse/auth-token").unwrap(),
        agent.file("fuse-a", "/fuse/auth-token").unwrap()
    );
    for path in [
        "/fuse/secrets.json",
        "/fuse/healthcheck.json",
        "/fuse/desktop.json",
    ] {
        assert_eq!(agent.file(name, path), agent.file("fuse-a", path), "{path}");
    }
    let source = fuse.get("/v1/environments/fuse-a").await.is(200);
    assert_eq!(source["state"], "running");
    let host = fuse.get("/v1/hosts/h").await.is(200);
    assert_eq!(host["allocated"]["vm_count"], 2);
    // The seed has a child as long as the fork exists.
    let list = fuse.get("/v1/snapshots?vm_id=fuse-a").await.is(200);
    let seed = &list["snapshots"][0];
    assert_eq!(
        (&seed["comment"], &seed["mode"]),
        (&json!("branch"), &json!("auto"))
    );
    let seed_path = format!("/v1/snapshots/{}", id(seed));
    assert_eq!(fuse.delete(&seed_path).await.status, 409);
    let reused = fuse
        .post(FORK, &json!({"reuse_snapshot_id": id(seed)}))
        .await
        .is(201);
    assert_ne!(reused["id"], fork["id"]);
    assert_eq!(agent.count(Step::Snapshot, "fuse-a"), 1);
    fuse.stop().await;
}

#[tokio::test]
async fn what_cannot_be_forked_is_refused() {
    let (fuse, agent) = running(Settings::default()).await;
    fuse.create(&json!({"task_id": "b"})).await.is(201);
    let of_b = fuse
        .post_raw("/v1/environments/fuse-b/snapshots", "")
        .await
        .is(201);
    let text = format!(
        "snapshot not found: snapshot {} was taken of vm fuse-b, not of vm fuse-a",
        id(&of_b)
    );
    fuse.post(FORK, &json!({"reuse_snapshot_id": id(&of_b)}))
        .await
        .is_error(404, "not_found", &text);
    fuse.post(FORK, &json!({"reuse_snapshot_id": "x"}))
        .await
        .is_error(404, "not_found", "snapshot x not found");
    // A boot that fails leaves nothing behind.
    agent.fail(Step::StartAgent, 1, 500, "no agent");
    let failed = fuse.post_raw(FORK, "").await;
    assert_eq!(failed.status, 500);
    assert_eq!(agent.vms(), ["fuse-a", "fuse-b"]);
    let host = fuse.get("/v1/hosts/h").await.is(200);
    assert_eq!(host["allocated"]["vm_count"], 2);
    fuse.post_raw("/v1/environments/fuse-a?action=drain", "")
        .await
        .is(200);
    fuse.post_raw(FORK, "").await.is_error(
        409,
        "conflict",
        "fork requires running: vm fuse-a is draining",
    );
    fuse.stop().await;
}

#[tokio::test]
async fn a_full_host_is_overcommitted_unless_capacity_is_required() {
    let (fuse, _agent) = running(Settings::default()).await;
    // 16 CPUs, of which the source has 2.
    fuse.create(&json!({"task_id": "big", "spec": {"cpus": 14}}))
        .await
        .is(201);
    let refused = fuse.post(FORK, &json!({"require_capacity": true})).await;
    assert_eq!((refused.status, refused.code()), (503, "unavailable"));
    assert!(
        refused
            .message()
            .starts_with("no host has sufficient capacity")
    );
    let fork = fuse.post_raw(FORK, "").await.is(201);
    let warning = fork["warnings"][0].as_str().unwrap();
    assert!(warning.contains("cpus 18 of 16"), "{warning}");
    let host = fuse.get("/v1/hosts/h").await.is(200);
    assert_eq!(host["allocated"]["cpus"], 18);
    fuse.until("/v1/audit?type=host.overcommitted", |answer| {
        !answer.json["audit_events"].as_array().unwrap().is_empty()
    })
    .await;
    let path = format!("/v1/environments/{}", id(&fork));
    fuse.delete(&path).await.is(204);
    let host = fuse.get("/v1/hosts/h").await.is(200);
    assert_eq!(host["allocated"]["cpus"], 16);
    fuse.stop().await;
}

#[tokio::test]
async fn forks_can_be_asked_for_twice_and_in_the_background() {
    let (fuse, agent) = running(Settings::default()).await;
    let post = async |header: (&'static str, &'static str)| {
        let request = fuse.request(Method::POST, FORK).header(header.0, header.1);
        Orchestrator::send(request).await
    };
    let first = post(("Idempotency-Key", "k")).await;
    let again = post(("Idempotency-Key", "k")).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(first.is(201)["id"], again.is(201)["id"]);
    assert_eq!(agent.vms().len(), 2);
    let accepted = post(("Prefer", "respond-async")).await;
    assert_eq!(accepted.header("preference-applied"), "respond-async");
    let accepted = accepted.is(202);
    assert_eq!(accepted["state"], "provisioning");
    let path = format!("/v1/environments/{}", id(&accepted));
    fuse.until(&path, |answer| answer.json["state"] == "running")
        .await;
    fuse.stop().await;
}

#[tokio::test]
async fn a_seed_decides_where_an_environment_goes() {
    let (fuse, agent) = running(Settings::default()).await;
    agent.write("fuse-a", "/data", b"seed");
    let seed = take(&fuse, json!({})).await;
    let other = FakeAgent::start().await.unwrap();
    fuse.register("empty", &other).await;
    let create = async |body: Value| fuse.create(&body).await;
    let made = create(json!({"task_id": "b", "seed_snapshot_id": id(&seed)}))
        .await
        .is(201);
    assert_eq!(made["host_id"], "h");
    assert_eq!(agent.file("fuse-b", "/data").unwrap(), b"seed");
    let path = "/v1/audit?type=vm.scheduled&entity_id=fuse-b";
    let scheduled = fuse.get(path).await.is(200)["audit_events"][0]["payload"].clone();
    assert_eq!(
        (&scheduled["host_id"], &scheduled["artifact_local"]),
        (&json!("h"), &json!(true))
    );
    create(json!({"task_id": "c", "seed_snapshot_id": "x"}))
        .await
        .is_error(404, "not_found", "snapshot x not found");
    let live = take(&fuse, json!({"live": true})).await;
    let refused = create(json!({"task_id": "c", "seed_snapshot_id": id(&live)})).await;
    assert_eq!((refused.status, refused.code()), (409, "conflict"));
    for host in ["h", "empty"] {
        let path = format!("/v1/hosts/{host}?action=cordon");
        fuse.post_raw(&path, "").await.is(204);
    }
    let refused = create(json!({"task_id": "c", "seed_snapshot_id": id(&seed)})).await;
    assert_eq!((refused.status, refused.code()), (503, "unavailable"));
    let text = format!(
        "no host has sufficient capacity: snapshot {} is on host h and can move: ",
        id(&seed)
    );
    assert!(refused.message().starts_with(&text), "{}", refused.text);
    fuse.stop().await;
}
