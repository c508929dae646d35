//! The checks of a create, in the order of the contract.

use serde_json::{Value, json};

use crate::support::Orchestrator;

/// `{"machine":{"env":{"A":{"secret":"K"}}}}`
const MANIFEST: &str = "eyJtYWNoaW5lIjp7ImVudiI6eyJBIjp7InNlY3JldCI6IksifX19fQ==";

/// Status, message, and what to put where so that the next refusal shows.
type Step = (u16, &'static str, &'static str, Value);

/// Up to the workload.
fn first_steps() -> Vec<Step> {
    vec![
        (400, "task_id is required", "/task_id", json!("taken")),
        (
            400,
            "spec.gpus must not be negative",
            "/spec/gpus",
            json!(1),
        ),
        (
            400,
            "spec.labels: invalid label key \"!\"",
            "/spec/labels",
            json!({}),
        ),
        (
            404,
            "spec.host_id: host \"nope\" is not registered",
            "/spec/host_id",
            json!(""),
        ),
        (
            400,
            "spec.max_runtime_seconds must not be negative",
            "/spec/max_runtime_seconds",
            json!(0),
        ),
        (
            400,
            "spec.idle_timeout_seconds must be 0 (fleet default) or at least 60",
            "/spec/idle_timeout_seconds",
            json!(60),
        ),
        (
            400,
            "healthcheck: exactly one of http or exec is required",
            "/healthcheck",
            Value::Null,
        ),
        (
            400,
            "desktop.width must be between 320 and 3840",
            "/desktop",
            Value::Null,
        ),
        (
            400,
            "expose[0].port must be between 1 and 65535",
            "/expose",
            json!([]),
        ),
        (
            400,
            "egress.mode must be direct or proxy",
            "/egress",
            Value::Null,
        ),
    ]
}

/// From the script on; the last ones need more than the request.
fn last_steps() -> Vec<Step> {
    vec![
        (
            400,
            "startup_script_timeout_seconds must not be negative",
            "/startup_script_timeout_seconds",
            json!(56),
        ),
        (
            400,
            "files: path \"x\" must be absolute",
            "/files",
            json!({}),
        ),
        (
            400,
            "manifest_inline is not valid base64",
            "/manifest_inline",
            json!(MANIFEST),
        ),
        (
            400,
            "secrets validation failed: secret \"K\" is required by the manifest",
            "/secrets",
            json!({"K": "v"}),
        ),
        (404, "snapshot s not found", "/seed_snapshot_id", json!("")),
        (
            400,
            "startup script timeout exceeds the configured maximum: 56s is above 55s",
            "/startup_script_timeout_seconds",
            json!(55),
        ),
        (
            409,
            "task already assigned: task taken is assigned to vm fuse-taken",
            "/task_id",
            json!("free"),
        ),
        (
            503,
            "gpu workloads require a registered gpu host",
            "/spec/gpus",
            json!(0),
        ),
    ]
}

/// One request that breaks every rule; each repair must uncover the next refusal.
#[tokio::test]
async fn a_create_is_checked_in_order() {
    let fuse = Orchestrator::start().await;
    fuse.create(&json!({"task_id": "taken"})).await.is(201);
    let mut body = json!({
        "spec": {
            "gpus": -1, "labels": {"!": "x"}, "host_id": "nope", "max_runtime_seconds": -1,
            "idle_timeout_seconds": 59,
        },
        "healthcheck": {}, "desktop": {"width": 1, "height": 1}, "expose": [{"port": 0}],
        "egress": {"mode": "tunnel"}, "startup_script_timeout_seconds": -1,
        "files": {"x": ""}, "manifest_inline": "!", "seed_snapshot_id": "s",
    });
    for (status, message, pointer, repaired) in [first_steps(), last_steps()].concat() {
        let answer = fuse.create(&body).await;
        assert_eq!(
            (answer.status, answer.message()),
            (status, message),
            "before {pointer}"
        );
        match body.pointer_mut(pointer) {
            Some(field) => *field = repaired,
            None => body[&pointer[1..]] = repaired,
        }
    }
    fuse.create(&body).await.is(201);
    fuse.stop().await;
}
