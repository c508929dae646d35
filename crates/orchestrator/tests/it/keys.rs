//! API keys, sessions and the login limit over the real surface.

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Answer, MASTER, Options, Orchestrator};

async fn durable() -> (Orchestrator, TempDir) {
    let dir = TempDir::new().unwrap();
    (Orchestrator::with(Options::file(dir.path())).await, dir)
}

/// A call with this token instead of the master's.
async fn with_token(fuse: &Orchestrator, method: Method, path: &str, token: &Value) -> Answer {
    let request = reqwest::Client::new()
        .request(method, format!("{}{path}", fuse.base))
        .bearer_auth(token.as_str().unwrap());
    Orchestrator::send(request).await
}

async fn login(fuse: &Orchestrator, token: &str) -> Answer {
    let request = reqwest::Client::new()
        .post(format!("{}/login", fuse.base))
        .json(&json!({ "token": token }));
    Orchestrator::send(request).await
}

#[tokio::test]
async fn a_key_lives_until_it_is_revoked() {
    let (fuse, _dir) = durable().await;
    let made = fuse
        .post("/v1/api-keys", &json!({"label": "ci"}))
        .await
        .is(201);
    let raw = made["key"].as_str().unwrap();
    let secret = raw.strip_prefix("fuse_sk_").unwrap();
    assert_eq!(secret.len(), 43);
    assert!(
        secret
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    );
    let id = made["id"].as_str().unwrap();
    assert_eq!(id.strip_prefix("ak_").unwrap().len(), 16);

    // The body may be left out.
    let bare = fuse.post_raw("/v1/api-keys", "").await.is(201);
    assert!(bare.get("label").is_none() && bare.get("scopes").is_none());

    let listed = fuse.get("/v1/api-keys").await.is(200);
    let keys = listed["api_keys"].as_array().unwrap();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0]["id"], bare["id"], "newest first");
    assert_eq!(
        keys[1],
        json!({"id": id, "label": "ci", "created_at": made["created_at"]})
    );

    // It gets in, and what it makes is its own.
    let key = &made["key"];
    with_token(&fuse, Method::GET, "/v1/environments", key)
        .await
        .is(200);
    // Its layers are its own, too; a miss says whose were looked through.
    let resolve = "/v1/snapshots/resolve?layer_key=k&arch=amd64";
    let miss = with_token(&fuse, Method::GET, resolve, key).await.is(200);
    assert_eq!(miss, json!({"found": false, "tenant_id": id}));
    let used = fuse
        .until("/v1/api-keys", |answer| {
            answer.json["api_keys"][1].get("last_used_at").is_some()
        })
        .await;
    let first_use = used.json["api_keys"][1]["last_used_at"].clone();
    for _ in 0..5 {
        with_token(&fuse, Method::GET, "/v1/environments", key)
            .await
            .is(200);
    }
    let listed = fuse.get("/v1/api-keys").await.is(200);
    assert_eq!(
        listed["api_keys"][1]["last_used_at"], first_use,
        "at most once a minute"
    );

    let path = format!("/v1/api-keys/{id}");
    assert_eq!(fuse.delete(&path).await.status, 204);
    with_token(&fuse, Method::GET, "/v1/environments", key)
        .await
        .is_error(401, "unauthorized", "invalid token");
    let revoked = fuse.get("/v1/api-keys").await.is(200)["api_keys"][1]["revoked_at"].clone();
    assert!(revoked.is_string());
    assert_eq!(fuse.delete(&path).await.status, 204);
    let listed = fuse.get("/v1/api-keys").await.is(200);
    assert_eq!(listed["api_keys"][1]["revoked_at"], revoked);
    fuse.delete("/v1/api-keys/ak_0")
        .await
        .is_error(404, "not_found", "api key not found");
    fuse.stop().await;
}

#[tokio::test]
async fn a_key_survives_a_restart_and_its_secret_is_not_stored() {
    let (fuse, dir) = durable().await;
    let made = fuse
        .post("/v1/api-keys", &json!({"scopes": ["attach", "exec"]}))
        .await
        .is(201);
    assert_eq!(made["scopes"], json!(["exec", "attach"]));
    fuse.stop().await;
    let secret = made["key"].as_str().unwrap().as_bytes();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret));
    }
    let fuse = Orchestrator::with(Options::file(dir.path())).await;
    with_token(&fuse, Method::GET, "/v1/hosts", &made["key"])
        .await
        .is(200);
    fuse.stop().await;
}

#[tokio::test]
async fn bad_keys_are_not_made() {
    let (fuse, _dir) = durable().await;
    fuse.post("/v1/api-keys", &json!({"scopes": ["hosts"]}))
        .await
        .is_error(
            400,
            "invalid_argument",
            "scopes: unknown scope \"hosts\" (expected exec or attach)",
        );
    let answer = fuse.post_raw("/v1/api-keys", "{").await;
    assert!(
        answer.message().starts_with("invalid JSON body: "),
        "{}",
        answer.text
    );
    assert_eq!(
        fuse.get("/v1/api-keys").await.is(200),
        json!({"api_keys": []})
    );
    fuse.stop().await;
}

#[tokio::test]
async fn scopes_open_exec() {
    let (fuse, _dir) = durable().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let exec = "/v1/environments/fuse-a?action=exec";
    for (scopes, status) in [
        (json!([]), 403),
        (json!(["attach"]), 403),
        (json!(["exec"]), 400),
    ] {
        let made = fuse
            .post("/v1/api-keys", &json!({ "scopes": scopes }))
            .await
            .is(201);
        let answer = with_token(&fuse, Method::POST, exec, &made["key"]).await;
        assert_eq!(
            (answer.status, answer.code()),
            match status {
                403 => (403, "unauthorized"),
                _ => (400, "invalid_argument"),
            },
            "{}",
            answer.text
        );
    }
    fuse.stop().await;
}

/// A key that cannot be looked up is not a wrong one.
#[tokio::test]
async fn a_store_that_is_away_is_not_a_bad_key() {
    let (fuse, _dir) = durable().await;
    let key = fuse.post_raw("/v1/api-keys", "").await.is(201)["key"].clone();
    fuse.control.store().close().await;
    let answer = with_token(&fuse, Method::GET, "/v1/environments", &key).await;
    answer.is_error(
        503,
        "unavailable",
        "API keys cannot be checked: the state store does not answer, try again in a moment",
    );
    // The master and the browsers need no store to be known.
    assert_eq!(login(&fuse, MASTER).await.status, 204);
    fuse.get("/v1/environments").await.is_error(
        503,
        "unavailable",
        "the state store does not answer, try again in a moment",
    );
    fuse.get("/v1/nope")
        .await
        .is_error(404, "route_not_found", "no such route: GET /v1/nope");
}

#[tokio::test]
async fn a_session_is_opened_and_closed() {
    let fuse = Orchestrator::start().await;
    let answer = login(&fuse, MASTER).await;
    assert_eq!((answer.status, answer.text.as_str()), (204, ""));
    let set = answer.header("set-cookie");
    let (cookie, attributes) = set.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; Max-Age=604800; HttpOnly; SameSite=Lax");
    assert!(!set.contains(MASTER));
    let get = |path: &str| {
        reqwest::Client::new()
            .get(format!("{}{path}", fuse.base))
            .header("Cookie", format!("theme=dark; {cookie}"))
    };
    Orchestrator::send(get("/v1/hosts")).await.is(200);
    let out =
        Orchestrator::send(reqwest::Client::new().post(format!("{}/logout", fuse.base))).await;
    assert_eq!(out.status, 204);
    assert_eq!(
        out.header("set-cookie"),
        "fuse_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
    );
    assert!(!out.header("x-request-id").is_empty());
    assert!(!out.header("server").is_empty());
    fuse.stop().await;
}

#[tokio::test]
async fn failed_logins_are_refused_told_and_limited() {
    let fuse = Orchestrator::start().await;
    let answer = fuse.post_raw("/login", "x".repeat(5000)).await;
    answer.is_error(
        413,
        "payload_too_large",
        "request body exceeds the 4096 byte limit for this endpoint",
    );
    for _ in 0..10 {
        let answer = login(&fuse, "wrong").await;
        answer.is_error(401, "unauthorized", "invalid token");
        assert_eq!(answer.header("set-cookie"), "");
    }
    // Not even the right token is looked at now, and bearers are not affected.
    let answer = login(&fuse, MASTER).await;
    assert_eq!((answer.status, answer.code()), (429, "unauthorized"));
    let wait: u64 = answer.header("retry-after").parse().unwrap();
    assert!((1..=61).contains(&wait));
    fuse.get("/v1/hosts").await.is(200);
    fuse.stop().await;
}
