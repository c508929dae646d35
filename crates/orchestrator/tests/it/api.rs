//! Environments and tasks on the stub: answers, errors, limits, pages.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Options, Orchestrator};

#[tokio::test]
async fn a_life_on_the_stub() {
    let fuse = Orchestrator::start().await;
    let made = fuse
        .create(&json!({"task_id": "a", "spec": {"cpus": 2}}))
        .await
        .is(201);
    assert_eq!(made["id"], "fuse-a");
    assert_eq!(made["state"], "running");
    assert_eq!(made["task_id"], "a");
    assert_eq!(made["url"], "fc://fuse-a");
    assert_eq!(made["spec"], json!({"cpus": 2}));
    assert_eq!(made["egress"], json!({"mode": "direct"}));
    for absent in ["host_id", "error", "endpoints", "health"] {
        assert!(made.get(absent).is_none(), "{absent}");
    }
    assert_eq!(fuse.get("/v1/environments/fuse-a").await.is(200), made);
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(
        (&task["vm_id"], &task["run_status"]),
        (&json!("fuse-a"), &json!("running"))
    );
    assert!(task.get("last_error").is_none());

    let gone = fuse.delete("/v1/environments/fuse-a").await;
    assert_eq!((gone.status, gone.text.as_str()), (204, ""));
    fuse.get("/v1/environments/fuse-a")
        .await
        .is_error(404, "not_found", "vm fuse-a not found");
    fuse.delete("/v1/environments/fuse-a")
        .await
        .is_error(404, "not_found", "vm fuse-a not found");
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(task["run_status"], "failed");
    assert_eq!(task["last_error"], "vm force destroyed");
    fuse.get("/v1/tasks/b")
        .await
        .is_error(404, "not_found", "task b not found");

    // The task may run again.
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    fuse.stop().await;
}

#[tokio::test]
async fn a_task_has_one_environment() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let again = fuse.create(&json!({"task_id": "a"})).await;
    again.is_error(
        409,
        "conflict",
        "task already assigned: task a is assigned to vm fuse-a",
    );
    assert_eq!(again.json["error"]["details"]["vm_id"], "fuse-a");
    fuse.stop().await;
}

#[tokio::test]
async fn odd_task_ids_become_host_safe_and_stay_as_sent() {
    let fuse = Orchestrator::start().await;
    let made = fuse.create(&json!({"task_id": "My Task/1"})).await.is(201);
    assert_eq!(made["task_id"], "My Task/1");
    let id = made["id"].as_str().unwrap();
    assert!(id.starts_with("fuse-my-task-1-"), "{id}");
    fuse.get("/v1/tasks/My%20Task%2F1").await.is(200);
    fuse.get(&format!("/v1/environments/{id}")).await.is(200);
    fuse.stop().await;
}

#[tokio::test]
async fn respond_async_answers_with_the_record() {
    let fuse = Orchestrator::start().await;
    let request = fuse
        .request(Method::POST, "/v1/environments")
        .header("Prefer", "respond-async")
        .json(&json!({"task_id": "a"}));
    let accepted = Orchestrator::send(request).await;
    assert_eq!(accepted.header("preference-applied"), "respond-async");
    let record = accepted.is(202);
    assert_eq!(
        (&record["state"], &record["url"]),
        (&json!("provisioning"), &json!(""))
    );
    fuse.until("/v1/environments/fuse-a", |answer| {
        answer.json["state"] == "running"
    })
    .await;
    fuse.stop().await;
}

#[tokio::test]
async fn bad_requests_have_the_contract_texts() {
    let fuse = Orchestrator::start().await;
    let path = "/v1/environments";
    for body in [
        "",
        "  ",
        "{",
        "[]",
        "\"x\"",
        r#"{"task_id":5}"#,
        r#"{"task_id":"a","spec":[]}"#,
    ] {
        let answer = fuse.post_raw(path, body).await;
        assert_eq!(
            (answer.status, answer.code()),
            (400, "invalid_argument"),
            "{body}"
        );
        assert!(
            answer.message().starts_with("invalid JSON body: "),
            "{}",
            answer.text
        );
    }
    let create = |extra: Value| {
        let mut body = json!({"task_id": "a"});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        body
    };
    for (body, status, code, message) in [
        (json!({}), 400, "invalid_argument", "task_id is required"),
        (
            create(json!({"spec": {"gpus": -1}})),
            400,
            "invalid_argument",
            "spec.gpus must not be negative",
        ),
        (
            create(json!({"spec": {"host_id": "nope"}, "startup_script_timeout_seconds": -1})),
            404,
            "not_found",
            "spec.host_id: host \"nope\" is not registered",
        ),
        (
            create(json!({"startup_script": "true", "startup_script_timeout_seconds": 56})),
            400,
            "invalid_argument",
            "startup script timeout exceeds the configured maximum: 56s is above 55s",
        ),
        (
            create(json!({"seed_snapshot_id": "s"})),
            404,
            "not_found",
            "snapshot s not found",
        ),
        (
            create(json!({"spec": {"gpus": 1}})),
            503,
            "unavailable",
            "gpu workloads require a registered gpu host",
        ),
        (
            create(json!({"spec": {"labels": {"disk": "nvme"}}})),
            503,
            "unavailable",
            "placement requires registered hosts",
        ),
    ] {
        fuse.create(&body).await.is_error(status, code, message);
    }
    // A refused placement leaves a failed task and no environment.
    let task = fuse.get("/v1/tasks/a").await.is(200);
    assert_eq!(task["run_status"], "failed");
    assert_eq!(task["last_error"], "placement requires registered hosts");
    assert_eq!(fuse.get(path).await.is(200), json!({"environments": []}));
    // Only the first value of a body counts.
    assert_eq!(
        fuse.post_raw(path, r#"{"task_id":"b"} {"#).await.status,
        201
    );
    fuse.stop().await;
}

#[tokio::test]
async fn body_limits_count_what_is_read() {
    let fuse = Orchestrator::start().await;
    let message = "request body exceeds the 1048576 byte limit for this endpoint";
    let large = format!(r#"{{"task_id":"a","pad":"{}"}}"#, "x".repeat(1_048_576));
    let answer = fuse.post_raw("/v1/environments", large.clone()).await;
    answer.is_error(413, "payload_too_large", message);
    // Without a declared length too.
    let chunks = futures_util::stream::iter(
        large
            .into_bytes()
            .chunks(65_536)
            .map(|c| Ok::<_, std::io::Error>(c.to_vec()))
            .collect::<Vec<_>>(),
    );
    let answer = fuse
        .post_raw("/v1/environments", reqwest::Body::wrap_stream(chunks))
        .await;
    answer.is_error(413, "payload_too_large", message);
    let small = format!(
        r#"{{"id":"a","url":"http://x","pad":"{}"}}"#,
        "x".repeat(65_536)
    );
    let answer = fuse.post_raw("/v1/hosts", small).await;
    answer.is_error(
        413,
        "payload_too_large",
        "request body exceeds the 65536 byte limit for this endpoint",
    );
    let files = json!({"task_id": "a", "files": {"/x": "A".repeat(700_000)}});
    let answer = fuse.create(&files).await;
    assert_eq!((answer.status, answer.code()), (413, "payload_too_large"));
    fuse.stop().await;
}

#[tokio::test]
async fn pages_are_in_order_and_complete() {
    let fuse = Orchestrator::start().await;
    let mut made = BTreeSet::new();
    for i in 0..7 {
        let answer = fuse
            .create(&json!({"task_id": format!("t{i}")}))
            .await
            .is(201);
        made.insert(answer["id"].as_str().unwrap().to_owned());
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = fuse
            .get(&format!("/v1/environments?limit=3&cursor={cursor}"))
            .await
            .is(200);
        let ids = page["environments"].as_array().unwrap();
        assert!(ids.len() <= 3);
        seen.extend(ids.iter().map(|e| e["id"].as_str().unwrap().to_owned()));
        if let Some(last) = seen.last().filter(|_| seen.len() == 3) {
            // The row that a cursor names may go away.
            fuse.delete(&format!("/v1/environments/{last}")).await;
        }
        match page["next_cursor"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => break,
        }
    }
    assert_eq!(seen, made.into_iter().collect::<Vec<_>>());
    for limit in ["0", "-1", "x", "9999"] {
        fuse.get(&format!("/v1/environments?limit={limit}"))
            .await
            .is(200);
    }
    let bad = fuse.get("/v1/environments?cursor=%21").await;
    bad.is_error(400, "invalid_argument", "invalid pagination cursor");
    fuse.get("/v1/hosts?cursor=AAAA").await.is_error(
        400,
        "invalid_argument",
        "invalid pagination cursor",
    );
    fuse.stop().await;
}

#[tokio::test]
async fn filters_are_exact_and_combine() {
    let fuse = Orchestrator::start().await;
    for task in ["a", "b"] {
        fuse.create(&json!({ "task_id": task })).await.is(201);
    }
    for (query, ids) in [
        ("task_id=a", vec!["fuse-a"]),
        ("task_id=", vec!["fuse-a", "fuse-b"]),
        ("state=running", vec!["fuse-a", "fuse-b"]),
        ("state=running&task_id=b", vec!["fuse-b"]),
        ("state=destroying&task_id=b", vec![]),
        ("state=destroyed", vec![]),
        ("state=nonsense", vec![]),
        ("host_id=h", vec![]),
        ("task_id=%00", vec![]),
        ("unknown=1", vec!["fuse-a", "fuse-b"]),
    ] {
        let list = fuse.get(&format!("/v1/environments?{query}")).await.is(200);
        let got: Vec<&str> = list["environments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["id"].as_str().unwrap())
            .collect();
        assert_eq!(got, ids, "{query}");
    }
    fuse.stop().await;
}

#[tokio::test]
async fn exec_on_the_stub_is_unimplemented() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "a"})).await.is(201);
    let path = "/v1/environments/fuse-a?action=exec";
    let answer = fuse.post(path, &json!({"cmd": ["true"]})).await;
    answer.is_error(501, "unimplemented", "exec not supported by provider");
    for (body, message) in [
        (json!({}), "one of cmd or shell is required"),
        (
            json!({"cmd": ["a"], "shell": "b"}),
            "cmd and shell are mutually exclusive",
        ),
    ] {
        fuse.post(path, &body)
            .await
            .is_error(400, "invalid_argument", message);
    }
    let unknown = "missing or unknown action query parameter";
    for path in [
        "/v1/environments/fuse-a",
        "/v1/environments/fuse-a?action=dance",
    ] {
        fuse.post(path, &json!({}))
            .await
            .is_error(400, "invalid_argument", unknown);
    }
    let missing = fuse
        .post("/v1/environments/x?action=exec", &json!({"cmd": ["true"]}))
        .await;
    missing.is_error(404, "not_found", "vm x not found");
    fuse.stop().await;
}

#[tokio::test]
async fn every_answer_names_request_and_server() {
    let fuse = Orchestrator::start().await;
    let paths = ["/v1/environments", "/v1/environments/x", "/v1/nope"];
    for path in paths {
        let answer = fuse.get(path).await;
        assert_eq!(answer.header("server"), "fuse-orchestrator/dev", "{path}");
        let id = answer.header("x-request-id");
        assert!(id.starts_with("req_") && id.len() == 36, "{id}");
        let kept = fuse
            .request(Method::GET, path)
            .header("X-Request-ID", "my_id-1");
        assert_eq!(
            Orchestrator::send(kept).await.header("x-request-id"),
            "my_id-1"
        );
        let replaced = fuse
            .request(Method::GET, path)
            .header("X-Request-ID", "not ok");
        assert!(
            Orchestrator::send(replaced)
                .await
                .header("x-request-id")
                .starts_with("req_")
        );
    }
    for path in ["/health", "/ready", "/v1/version"] {
        let answer = fuse.get(path).await;
        assert_eq!(answer.header("server"), "", "{path}");
        assert_eq!(answer.header("x-request-id"), "", "{path}");
    }
    assert_eq!(fuse.get("/health").await.text, r#"{"status":"ok"}"#);
    assert_eq!(
        fuse.get("/v1/version").await.text,
        r#"{"service":"fuse-orchestrator","version":"dev"}"#
    );
    let ready = fuse.until("/ready", |answer| answer.status == 200).await;
    assert_eq!(ready.json["status"], "ready");
    assert_eq!(ready.json["checks"]["state_store"], "ok");
    assert_eq!(ready.json["checks"]["fleet"], "ok");
    fuse.stop().await;
}

#[tokio::test]
async fn wrong_methods_name_the_right_ones() {
    let fuse = Orchestrator::start().await;
    let answer = Orchestrator::send(fuse.request(Method::PUT, "/v1/environments")).await;
    answer.is_error(
        405,
        "route_not_found",
        "no such route: PUT /v1/environments",
    );
    for method in ["GET", "POST"] {
        assert!(
            answer.header("allow").contains(method),
            "{}",
            answer.header("allow")
        );
    }
    fuse.stop().await;
}

#[tokio::test]
async fn a_stopped_store_is_unavailable_and_not_ready() {
    let fuse = Orchestrator::with(Options::default()).await;
    fuse.control.store().close().await;
    let answer = fuse.get("/v1/environments").await;
    assert_eq!((answer.status, answer.code()), (503, "unavailable"));
    let ready = fuse.get("/ready").await;
    assert_eq!(
        (ready.status, &ready.json["status"]),
        (503, &json!("not_ready"))
    );
    assert!(ready.json.get("error").is_none());
}
