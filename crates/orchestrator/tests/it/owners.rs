//! API keys that are kept to what they made themselves.

use fuse_testkit::fake_agent::FakeAgent;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Answer, Options, Orchestrator, http_client, with_agent};

/// Two keys of an orchestrator that keeps them apart.
struct Two {
    fuse: Orchestrator,
    keys: [String; 2],
    _agent: FakeAgent,
    _dir: TempDir,
}

impl Two {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let mut options = Options::file(dir.path());
        options.settings.scope_keys_to_owner = true;
        let (fuse, agent) = with_agent(options).await;
        let mut keys = [const { String::new() }; 2];
        for key in &mut keys {
            let scopes = json!({"scopes": ["exec"]});
            let made = fuse.post("/v1/api-keys", &scopes).await.is(201);
            made["key"].as_str().unwrap().clone_into(key);
        }
        Self {
            fuse,
            keys,
            _agent: agent,
            _dir: dir,
        }
    }

    /// A call as one of the two.
    async fn call(&self, who: usize, method: Method, path: &str, body: Value) -> Answer {
        let request = http_client()
            .request(method, format!("{}{path}", self.fuse.base))
            .bearer_auth(&self.keys[who])
            .json(&body);
        Orchestrator::send(request).await
    }

    async fn get(&self, who: usize, path: &str) -> Answer {
        self.call(who, Method::GET, path, Value::Null).await
    }

    /// Environments `fuse-a` and `fuse-b` of one key each, `fuse-c` of the master.
    async fn create_three(&self) {
        for (who, task) in [(0, "a"), (1, "b")] {
            let body = json!({ "task_id": task });
            let path = "/v1/environments";
            self.call(who, Method::POST, path, body).await.is(201);
        }
        self.fuse.create(&json!({"task_id": "c"})).await.is(201);
    }
}

fn ids(page: &Value, key: &str) -> Vec<String> {
    let all = page[key].as_array().unwrap();
    all.iter()
        .map(|e| e["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn environments() {
    let two = Two::start().await;
    two.create_three().await;
    let path = "/v1/environments?task_id=";
    let own = two.get(0, path).await.is(200);
    assert_eq!(ids(&own, "environments"), ["fuse-a"]);
    let all = two.fuse.get(path).await.is(200);
    assert_eq!(ids(&all, "environments"), ["fuse-a", "fuse-b", "fuse-c"]);

    for (method, path) in [
        (Method::GET, "/v1/environments/fuse-b"),
        (Method::DELETE, "/v1/environments/fuse-b"),
        (Method::GET, "/v1/environments/fuse-b/events"),
        (Method::POST, "/v1/environments/fuse-b?action=exec"),
        (Method::POST, "/v1/environments/fuse-b/snapshots"),
        (Method::GET, "/v1/environments/fuse-c"),
    ] {
        let answer = two.call(0, method, path, Value::Null).await;
        let name = &path["/v1/environments/".len()..][..6];
        answer.is_error(404, "not_found", &format!("vm {name} not found"));
    }
    let own = "/v1/environments/fuse-a";
    two.get(0, own).await.is(200);
    two.fuse.get("/v1/environments/fuse-b").await.is(200);
    let gone = two.call(0, Method::DELETE, own, Value::Null).await;
    assert_eq!(gone.status, 204, "{}", gone.text);
    two.fuse.stop().await;
}

#[tokio::test]
async fn tasks() {
    let two = Two::start().await;
    two.create_three().await;
    two.get(0, "/v1/tasks/a").await.is(200);
    for (who, task) in [(0, "b"), (1, "a"), (0, "c"), (0, "nobody")] {
        let answer = two.get(who, &format!("/v1/tasks/{task}")).await;
        answer.is_error(404, "not_found", &format!("task {task} not found"));
    }
    two.fuse.get("/v1/tasks/a").await.is(200);

    // It outlives its environment, also one that was never placed.
    let path = "/v1/environments/fuse-a";
    two.call(0, Method::DELETE, path, Value::Null).await;
    let body = json!({"task_id": "d", "spec": {"region": "nowhere"}});
    let refused = two.call(1, Method::POST, "/v1/environments", body).await;
    assert_eq!(refused.status, 503, "{}", refused.text);
    for (who, task, want) in [(0, "a", 200), (1, "a", 404), (1, "d", 200), (0, "d", 404)] {
        let answer = two.get(who, &format!("/v1/tasks/{task}")).await;
        assert_eq!(answer.status, want, "{who} {task}");
    }
    two.fuse.stop().await;
}

#[tokio::test]
async fn snapshots() {
    let two = Two::start().await;
    two.create_three().await;
    let mut taken = Vec::new();
    for (who, vm) in [(0, "a"), (1, "b")] {
        let path = format!("/v1/environments/fuse-{vm}/snapshots");
        let made = two.call(who, Method::POST, &path, json!({})).await.is(201);
        taken.push(made["id"].as_str().unwrap().to_owned());
    }
    let own = two.get(0, "/v1/snapshots").await.is(200);
    assert_eq!(ids(&own, "snapshots"), [taken[0].clone()]);
    let all = two.fuse.get("/v1/snapshots").await.is(200);
    assert_eq!(all["snapshots"].as_array().unwrap().len(), 2);

    let other = &taken[1];
    let text = format!("snapshot {other} not found");
    for (method, path) in [
        (Method::GET, format!("/v1/snapshots/{other}")),
        (Method::DELETE, format!("/v1/snapshots/{other}")),
        (
            Method::POST,
            format!("/v1/snapshots/{other}?action=restore"),
        ),
    ] {
        let answer = two.call(0, method, &path, Value::Null).await;
        answer.is_error(404, "not_found", &text);
    }
    // Nor by naming it in a request.
    for (path, body) in [
        (
            "/v1/environments",
            json!({"task_id": "e", "seed_snapshot_id": other}),
        ),
        (
            "/v1/environments/fuse-a?action=fork",
            json!({"reuse_snapshot_id": other}),
        ),
    ] {
        let answer = two.call(0, Method::POST, path, body).await;
        answer.is_error(404, "not_found", &text);
    }
    let own = format!("/v1/snapshots/{}", taken[0]);
    two.get(0, &own).await.is(200);
    let gone = two.call(0, Method::DELETE, &own, Value::Null).await;
    assert_eq!(gone.status, 204, "{}", gone.text);
    two.fuse.stop().await;
}
