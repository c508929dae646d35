//! API keys and dead letters: each rule, its code and its exact text.

use serde_json::{Value, json};

use crate::support::{Options, Orchestrator};

#[tokio::test]
async fn keys_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let fuse = Orchestrator::with(Options::file(dir.path())).await;
    let scope = |name: &str| format!("scopes: unknown scope {name:?} (expected exec or attach)");
    for (body, message) in [
        (json!({"scopes": ["Exec"]}), scope("Exec")),
        (json!({"scopes": ["exec", ""]}), scope("")),
        (json!({"scopes": ["hosts"]}), scope("hosts")),
        (
            json!({"label": "ä".repeat(257)}),
            "label must not be longer than 256 characters".to_owned(),
        ),
    ] {
        fuse.post("/v1/api-keys", &body)
            .await
            .is_error(400, "invalid_argument", &message);
    }
    let list = fuse.get("/v1/api-keys").await.is(200);
    assert_eq!(list, json!({"api_keys": []}));
    for (body, scopes) in [
        (json!({}), None),
        (json!({"scopes": []}), None),
        (json!({"scopes": null, "label": null}), None),
        (json!({"label": "ä".repeat(256)}), None),
        (
            json!({"scopes": ["attach", "exec", "exec"]}),
            Some(json!(["exec", "attach"])),
        ),
    ] {
        let made = fuse.post("/v1/api-keys", &body).await.is(201);
        assert_eq!(made.get("scopes"), scopes.as_ref(), "{body}");
        for absent in ["last_used_at", "revoked_at"] {
            assert_eq!(made.get(absent), None, "{absent}");
        }
        // Shown once.
        let list = fuse.get("/v1/api-keys").await;
        assert!(!list.text.contains(made["key"].as_str().unwrap()));
        assert_eq!(list.json["api_keys"][0]["id"], made["id"]);
    }
    fuse.delete("/v1/api-keys/ak_0")
        .await
        .is_error(404, "not_found", "api key not found");
    fuse.stop().await;
}

#[tokio::test]
async fn keys_need_a_store_that_keeps_them() {
    let fuse = Orchestrator::start().await;
    let text = "API keys need a durable store: set DATABASE_URL to postgres://… or sqlite://…";
    for answer in [
        fuse.get("/v1/api-keys").await,
        fuse.post("/v1/api-keys", &json!({})).await,
        fuse.delete("/v1/api-keys/ak_0").await,
    ] {
        answer.is_error(404, "route_not_found", text);
        let details = json!({"reason": "api_keys_disabled"});
        assert_eq!(answer.json["error"]["details"], details);
    }
    fuse.stop().await;
}

#[tokio::test]
async fn dead_letters_are_listed_in_order() {
    let fuse = Orchestrator::start().await;
    let list = fuse.get("/v1/dead-letters").await.is(200);
    assert_eq!(list, json!({"dead_letters": []}));
    let letter = |kind: &str, entity: &str, task: &str| fuse_store::DeadLetter {
        kind: kind.to_owned(),
        entity_id: entity.to_owned(),
        task_id: task.to_owned(),
        reason: "why".to_owned(),
        retry_count: 2,
        payload: json!({"age": 7}).as_object().unwrap().clone(),
    };
    let store = fuse.control.store();
    for (kind, entity, task) in [
        ("stuck_task", "fuse-a", "a"),
        ("idle_timeout", "fuse-b", "b"),
        ("idle_timeout", "fuse-a", "a"),
        ("orphan_destroy", "fuse-x", ""),
    ] {
        store
            .dead_letter_put(letter(kind, entity, task))
            .await
            .unwrap();
    }
    let mut seen = Vec::new();
    let mut path = "/v1/dead-letters?limit=3".to_owned();
    loop {
        let page = fuse.get(&path).await.is(200);
        seen.extend(page["dead_letters"].as_array().unwrap().clone());
        let Some(next) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/dead-letters?limit=3&cursor={next}");
    }
    let order: Vec<(&Value, &Value)> = seen.iter().map(|l| (&l["kind"], &l["entity_id"])).collect();
    assert_eq!(
        order,
        [
            (&json!("idle_timeout"), &json!("fuse-a")),
            (&json!("idle_timeout"), &json!("fuse-b")),
            (&json!("orphan_destroy"), &json!("fuse-x")),
            (&json!("stuck_task"), &json!("fuse-a")),
        ]
    );
    assert_eq!(seen[2].get("task_id"), None);
    assert_eq!(
        (
            &seen[0]["task_id"],
            &seen[0]["reason"],
            &seen[0]["retry_count"],
            &seen[0]["payload"]
        ),
        (&json!("a"), &json!("why"), &json!(2), &json!({"age": 7}))
    );
    for time in ["first_seen_at", "last_seen_at"] {
        assert!(seen[0][time].is_string(), "{time}");
    }
    fuse.stop().await;
}
