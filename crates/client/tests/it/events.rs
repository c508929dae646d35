//! Event streams: delivery, reconnection, the fall to polling, the end.

use axum::body::Body;
use axum::http::Response;
use fuse_client::EventStream;

use crate::server::{Server, environment, json, stream};

fn record(id: &str, state: &str) -> String {
    format!(
        "id: {id}\ndata: {{\"id\":\"{id}\",\"event\":\"state\",\"vm_id\":\"fuse-a\",\
         \"state\":\"{state}\",\"updated_at\":\"2026-01-15T10:00:00Z\"}}\n\n"
    )
}

fn not_found() -> Response<Body> {
    json(
        404,
        r#"{"error":{"code":"not_found","message":"vm fuse-a not found"}}"#,
    )
}

async fn states(mut events: EventStream) -> Vec<String> {
    let mut seen = Vec::new();
    while let Some(event) = events.next().await.unwrap() {
        seen.push(event.state);
    }
    seen
}

#[tokio::test]
async fn events_come_in_order_and_end_with_the_terminal_one() {
    let server = Server::start(|_, _| {
        let text = [
            ": keepalive\n\n",
            &record("1", "provisioning"),
            "data: {\"not\":\"an event\"}\n\n",
            &record("2", "running"),
            &record("3", "destroyed"),
            &record("4", "after the end"),
        ]
        .concat();
        stream(&text)
    })
    .await;
    let events = server.client().events("fuse-a").await.unwrap();
    assert_eq!(
        states(events).await,
        ["provisioning", "running", "destroyed"]
    );
    let seen = server.seen();
    assert_eq!(seen[0].line, "GET /v1/environments/fuse-a/events");
    assert_eq!(seen[0].header("accept"), "text/event-stream");
}

#[tokio::test]
async fn a_dropped_stream_is_resumed_without_repeating_itself() {
    let server = Server::start(|seen, before| match before {
        0 => stream(&record("1", "provisioning")),
        // A server that does not know the id begins with a snapshot.
        1 => stream(&record("9", "provisioning")),
        // One that does goes on where it was.
        _ => {
            assert_eq!(seen.header("last-event-id"), "9");
            stream(&[record("10", "running"), record("11", "failed")].concat())
        }
    })
    .await;
    let events = server.client().events("fuse-a").await.unwrap();
    assert_eq!(states(events).await, ["provisioning", "running", "failed"]);
    assert_eq!(server.seen()[1].header("last-event-id"), "1");
}

#[tokio::test]
async fn a_record_that_is_gone_ends_the_stream() {
    let server = Server::start(|_, before| match before {
        0 => stream(&record("1", "running")),
        _ => not_found(),
    })
    .await;
    let events = server.client().events("fuse-a").await.unwrap();
    assert_eq!(states(events).await, ["running"]);
}

#[tokio::test]
async fn an_unknown_environment_is_an_error() {
    let server = Server::start(|_, _| not_found()).await;
    assert!(
        server
            .client()
            .events("fuse-a")
            .await
            .unwrap_err()
            .is_not_found()
    );
}

#[tokio::test]
async fn without_streams_the_record_is_read() {
    let server = Server::start(|seen, before| {
        if seen.line.ends_with("/events") {
            // Something in between answers, but not with a stream.
            return json(200, "{}");
        }
        match before {
            1 => json(200, &environment("provisioning")),
            2 => json(502, "bad gateway"),
            3 => json(200, &environment("running")),
            _ => not_found(),
        }
    })
    .await;
    let events = server.client().events("fuse-a").await.unwrap();
    assert_eq!(states(events).await, ["provisioning", "running"]);
}

#[tokio::test]
async fn empty_streams_give_way_to_reading_the_record() {
    let server = Server::start(|seen, _| {
        if seen.line.ends_with("/events") {
            stream("")
        } else {
            not_found()
        }
    })
    .await;
    let events = server.client().events("fuse-a").await.unwrap();
    assert_eq!(states(events).await, Vec::<String>::new());
    let streams = server
        .seen()
        .iter()
        .filter(|seen| seen.line.ends_with("/events"))
        .count();
    assert_eq!(streams, 4);
}

#[tokio::test]
async fn a_refusal_on_the_way_is_an_error() {
    let server = Server::start(|_, before| match before {
        0 => stream(&record("1", "running")),
        _ => json(
            401,
            r#"{"error":{"code":"unauthorized","message":"invalid token"}}"#,
        ),
    })
    .await;
    let mut events = server.client().events("fuse-a").await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap().state, "running");
    assert!(
        events
            .next()
            .await
            .unwrap_err()
            .api()
            .unwrap()
            .is_unauthorized()
    );
}
