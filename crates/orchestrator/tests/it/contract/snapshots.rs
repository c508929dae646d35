//! Snapshots: each refusal, its code and its exact text, and who sees what.

use fuse_testkit::fake_agent::FakeAgent;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Options, Orchestrator, http_client, with_agent};

const SNAPSHOTS: &str = "/v1/environments/fuse-a/snapshots";

async fn running() -> (Orchestrator, FakeAgent) {
    let (fuse, agent) = with_agent(Options::default()).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    (fuse, agent)
}

fn id(snapshot: &Value) -> &str {
    snapshot["id"].as_str().unwrap()
}

#[tokio::test]
async fn snapshots_that_are_not_there() {
    let (fuse, _agent) = running().await;
    let missing = "snapshot x not found";
    fuse.get("/v1/snapshots/x")
        .await
        .is_error(404, "not_found", missing);
    fuse.delete("/v1/snapshots/x")
        .await
        .is_error(404, "not_found", missing);
    fuse.post_raw("/v1/snapshots/x?action=restore", "")
        .await
        .is_error(404, "not_found", missing);
    for path in ["/v1/snapshots/x", "/v1/snapshots/x?action=fork"] {
        fuse.post_raw(path, "").await.is_error(
            400,
            "invalid_argument",
            "missing or unknown action query parameter",
        );
    }
    // A literal path comes before an id.
    for (query, message) in [
        ("", "layer_key is required"),
        ("?layer_key=", "layer_key is required"),
        ("?layer_key=k", "arch is required"),
        ("?layer_key=k&arch=", "arch is required"),
    ] {
        fuse.get(&format!("/v1/snapshots/resolve{query}"))
            .await
            .is_error(400, "invalid_argument", message);
    }
    fuse.stop().await;
}

#[tokio::test]
async fn requests_have_defaults_and_words_of_their_own() {
    let (fuse, _agent) = running().await;
    let first = fuse.post_raw(SNAPSHOTS, "").await.is(201);
    assert_eq!(
        (&first["mode"], &first["state"]),
        (&json!("manual"), &json!("ready"))
    );
    for (body, key, value) in [
        (json!({"mode": "auto"}), "mode", json!("auto")),
        (json!({"mode": "nightly"}), "mode", json!("nightly")),
        (json!({"comment": "c"}), "comment", json!("c")),
        (json!({"metadata": {"name": "n"}}), "name", json!("n")),
        (
            json!({"export_ref": "s3://x"}),
            "export_ref",
            json!("s3://x"),
        ),
        (json!({"live": true}), "kind", json!("live")),
        (json!({"live": false}), "kind", json!("disk")),
    ] {
        let made = fuse.post(SNAPSHOTS, &body).await.is(201);
        assert_eq!(made[key], value, "{body}");
        let read = fuse
            .get(&format!("/v1/snapshots/{}", id(&made)))
            .await
            .is(200);
        assert_eq!(read, made, "{body}");
    }
    let exported = json!({"export_ref": "s3://x", "export_status": "done"});
    let made = fuse.post(SNAPSHOTS, &exported).await.is(201);
    let exports = made["exports"].as_array().unwrap();
    assert_eq!(exports.len(), 1);
    assert_eq!(
        (&exports[0]["destination"], &exports[0]["status"]),
        (&json!("s3://x"), &json!("done"))
    );
    for (retention, kept) in [(0, false), (-5, false), (60, true)] {
        let body = json!({"retention_seconds": retention});
        let made = fuse.post(SNAPSHOTS, &body).await.is(201);
        assert_eq!(made.get("retention_until").is_some(), kept, "{retention}");
    }
    fuse.stop().await;
}

#[tokio::test]
async fn filters_combine_and_pages_hold_together() {
    let (fuse, _agent) = running().await;
    fuse.create(&json!({"task_id": "b"})).await.is(201);
    for (vm, body) in [
        ("fuse-a", json!({"metadata": {"name": "n"}})),
        ("fuse-a", json!({"mode": "build", "layer_key": "k"})),
        ("fuse-b", json!({"mode": "auto"})),
    ] {
        let path = format!("/v1/environments/{vm}/snapshots");
        fuse.post(&path, &body).await.is(201);
    }
    for (query, count) in [
        ("", 3),
        ("vm_id=fuse-a", 2),
        ("vm_id=", 3),
        ("vm_id=fuse-a&mode=build", 1),
        ("vm_id=fuse-b&mode=build", 0),
        ("task_id=b", 1),
        ("tenant_id=a", 1),
        ("tenant_id=nobody", 0),
        ("state=ready", 3),
        ("state=creating", 0),
        ("state=Ready", 0),
        ("mode=auto", 1),
        ("name=n", 1),
        ("layer_key=k", 1),
        ("arch=amd64", 3),
        ("arch=X86_64", 3),
        ("arch=aarch64", 0),
        ("arch=mips", 0),
        ("unknown=1", 3),
    ] {
        let list = fuse.get(&format!("/v1/snapshots?{query}")).await.is(200);
        assert_eq!(
            list["snapshots"].as_array().unwrap().len(),
            count,
            "{query}"
        );
        assert!(list.get("next_cursor").is_none(), "{query}");
    }
    // Newest first; the row of a cursor may go away.
    let all = fuse.get("/v1/snapshots").await.is(200);
    let ids: Vec<&str> = all["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .map(id)
        .collect();
    let page = fuse.get("/v1/snapshots?limit=1").await.is(200);
    assert_eq!(id(&page["snapshots"][0]), ids[0]);
    fuse.delete(&format!("/v1/snapshots/{}", ids[0]))
        .await
        .is(204);
    let next = format!(
        "/v1/snapshots?cursor={}",
        page["next_cursor"].as_str().unwrap()
    );
    let rest = fuse.get(&next).await.is(200);
    let rest: Vec<&str> = rest["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .map(id)
        .collect();
    assert_eq!(rest, ids[1..]);
    fuse.stop().await;
}

/// Snapshots are the fleet's, and every key sees them; what was written down along with one is
/// for the key that took it, and for the master.
#[tokio::test]
async fn metadata_is_for_whoever_wrote_it() {
    let dir = tempfile::tempdir().unwrap();
    let (fuse, _agent) = with_agent(Options::file(dir.path())).await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let mut keys = Vec::new();
    for _ in 0..2 {
        let made = fuse.post_raw("/v1/api-keys", "").await.is(201);
        keys.push(made["key"].as_str().unwrap().to_owned());
    }
    let call = async |who: usize, method: Method, path: &str, body: Value| -> Answer {
        let request = http_client()
            .request(method, format!("{}{path}", fuse.base))
            .bearer_auth(&keys[who])
            .json(&body);
        Orchestrator::send(request).await
    };
    let body = json!({"mode": "build", "layer_key": "k", "comment": "c",
        "metadata": {"name": "n", "inputs": "src/secret-plan.txt"}});
    let taken = call(0, Method::POST, SNAPSHOTS, body).await.is(201);
    let whole = json!({"name": "n", "inputs": "src/secret-plan.txt", "comment": "c"});
    assert_eq!(taken["metadata"], whole);
    let path = format!("/v1/snapshots/{}", id(&taken));
    for (who, is_shown) in [(0, true), (1, false)] {
        let one = call(who, Method::GET, &path, Value::Null).await.is(200);
        let list = call(who, Method::GET, "/v1/snapshots", Value::Null)
            .await
            .is(200);
        for seen in [&one, &list["snapshots"][0]] {
            assert_eq!(id(seen), id(&taken));
            assert_eq!(
                (&seen["name"], &seen["comment"]),
                (&json!("n"), &json!("c"))
            );
            assert_eq!(seen.get("metadata").is_some(), is_shown, "{who}: {seen}");
        }
    }
    assert_eq!(fuse.get(&path).await.is(200)["metadata"], whole);
    fuse.stop().await;
}
