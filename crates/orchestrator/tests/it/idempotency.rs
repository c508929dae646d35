//! `Idempotency-Key` on creates.

use fuse_testkit::fake_agent::Step;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, Options, Orchestrator, with_agent};

async fn create(fuse: &Orchestrator, key: &str, body: &Value) -> Answer {
    let request = fuse
        .request(Method::POST, "/v1/environments")
        .header("Idempotency-Key", key)
        .json(body);
    Orchestrator::send(request).await
}

fn is_replay(answer: &Answer) -> bool {
    answer.header("idempotency-replayed") == "true"
}

#[tokio::test]
async fn a_repeat_gets_the_same_answer_across_restarts() {
    let dir = tempfile::TempDir::new().unwrap();
    let fuse = Orchestrator::with(Options::file(dir.path())).await;
    let body = json!({"task_id": "a", "spec": {"cpus": 1}});
    let first = create(&fuse, "k-1", &body).await;
    assert!(!is_replay(&first));
    let again = create(&fuse, "k-1", &body).await;
    assert!(is_replay(&again));
    assert_eq!(
        (again.status, &again.text, again.header("content-type")),
        (201, &first.text, "application/json")
    );
    // Another request under the key is no repeat, and the key is one caller's.
    let other = create(&fuse, "k-1", &json!({"task_id": "b"})).await;
    other.is_error(
        409,
        "conflict",
        "the Idempotency-Key was used for a different request within the last 24 hours",
    );
    assert_eq!(
        other.json["error"]["details"]["reason"],
        "idempotency_key_reused"
    );
    // The environment may be gone, the answer stays, and nothing is made anew.
    assert_eq!(fuse.delete("/v1/environments/fuse-a").await.status, 204);
    assert_eq!(create(&fuse, "k-1", &body).await.text, first.text);
    fuse.stop().await;

    let fuse = Orchestrator::with(Options::file(dir.path())).await;
    let again = create(&fuse, "k-1", &body).await;
    assert_eq!((again.status, &again.text), (201, &first.text));
    assert_eq!(fuse.get("/v1/environments/fuse-a").await.status, 404);
    // A new key is a new request.
    assert!(!is_replay(&create(&fuse, "k-2", &body).await));
    fuse.stop().await;
}

#[tokio::test]
async fn requests_that_made_nothing_may_be_repeated() {
    let fuse = Orchestrator::start().await;
    let bad = create(&fuse, "k", &json!({"task_id": ""})).await;
    assert_eq!(bad.status, 400);
    let nowhere = json!({"task_id": "a", "spec": {"labels": {"x": "y"}}});
    assert_eq!(create(&fuse, "k", &nowhere).await.status, 503);
    let good = create(&fuse, "k", &json!({"task_id": "a"})).await;
    assert_eq!((good.status, is_replay(&good)), (201, false));
    let taken = create(&fuse, "k-2", &json!({"task_id": "a"})).await;
    assert_eq!((taken.status, taken.code()), (409, "conflict"));
    create(&fuse, "not a key", &json!({"task_id": "b"}))
        .await
        .is_error(
            400,
            "invalid_argument",
            "Idempotency-Key must be one header of 1 to 255 visible ASCII characters",
        );
    fuse.stop().await;
}

#[tokio::test]
async fn repeats_of_a_create_under_way_wait_for_it() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let gate = agent.hold(Step::Create);
    let body = json!({"task_id": "a"});
    let (first, second, third) = tokio::join!(
        create(&fuse, "k", &body),
        create(&fuse, "k", &body),
        async {
            fuse.until("/v1/environments/fuse-a", |answer| answer.status == 200)
                .await;
            let request = fuse
                .request(Method::POST, "/v1/environments")
                .header("Idempotency-Key", "k")
                .header("Prefer", "respond-async")
                .json(&body);
            let accepted = Orchestrator::send(request).await;
            assert_eq!(accepted.status, 202, "{}", accepted.text);
            assert_eq!(accepted.json["state"], "provisioning");
            gate.open();
            create(&fuse, "k", &body).await
        }
    );
    for answer in [&first, &second, &third] {
        assert_eq!((answer.status, &answer.text), (201, &first.text));
    }
    assert_eq!(agent.vms().len(), 1);
    fuse.stop().await;
}

#[tokio::test]
async fn a_failed_create_fails_again_without_a_boot() {
    let (fuse, agent) = with_agent(Options::default()).await;
    agent.fail(Step::Create, 1, 500, "no such kernel");
    let body = json!({"task_id": "a"});
    let first = create(&fuse, "k", &body).await;
    assert_eq!((first.status, first.code()), (500, "internal"));
    let again = create(&fuse, "k", &body).await;
    assert!(is_replay(&again));
    assert_eq!((again.status, &again.text), (500, &first.text));
    assert!(agent.vms().is_empty());
    fuse.stop().await;
}

#[tokio::test]
async fn a_caller_that_leaves_gets_the_answer_later() {
    let (fuse, agent) = with_agent(Options::default()).await;
    let gate = agent.hold(Step::Create);
    let body = json!({"task_id": "a"});
    {
        let left = create(&fuse, "k", &body);
        tokio::pin!(left);
        let accepted = fuse.until("/v1/environments/fuse-a", |answer| answer.status == 200);
        tokio::select! {
            _ = &mut left => panic!("it is held"),
            _ = accepted => {}
        }
    }
    gate.open();
    let answer = create(&fuse, "k", &body).await;
    assert_eq!(
        (answer.status, &answer.json["state"]),
        (201, &json!("running"))
    );
    assert_eq!(agent.vms().len(), 1);
    fuse.stop().await;
}
