//! `/v1/environments/{id}/events` and `/v1/events`: server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use fuse_model::{EnvironmentEvent, EnvironmentId, EventId};
use futures_util::{Stream, StreamExt as _, stream};

use crate::{
    http::{ApiError, App, Query},
    server::Unhurried,
    views,
};

/// A comment is sent after this much silence, so that proxies keep the stream.
const KEEPALIVE: Duration = Duration::from_secs(15);

pub(super) async fn stream(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    let last = last_event_id(&headers, &query);
    let events = app.control.environment_events(&id, last).await?;
    Ok(answer(stream::unfold(events, |mut events| async move {
        Some((events.next().await?, events))
    })))
}

/// Everything that happens in the fleet, from now on or from a known event on.
pub(super) async fn fleet(
    State(app): State<App>,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let last = last_event_id(&headers, &query);
    let events = app.control.fleet_events(last).await?;
    Ok(answer(stream::unfold(events, |mut events| async move {
        Some((events.next().await?, events))
    })))
}

/// An id that is not one of ours behaves as none.
fn last_event_id(headers: &HeaderMap, query: &Query) -> Option<EventId> {
    headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok())
        .or_else(|| query.get("last_event_id"))
        .and_then(|text| text.parse().ok())
}

fn answer(events: impl Stream<Item = EnvironmentEvent> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(frames(events, KEEPALIVE)));
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONNECTION, "keep-alive"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response.extensions_mut().insert(Unhurried);
    response
}

fn frames(
    events: impl Stream<Item = EnvironmentEvent> + Send + 'static,
    keepalive: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold(Box::pin(events), move |mut events| async move {
        let frame = match tokio::time::timeout(keepalive, events.next()).await {
            Ok(Some(event)) => {
                let event = views::event(event);
                // Records of plain fields always serialise.
                let json = serde_json::to_string(&event).unwrap_or_default();
                format!("id: {}\ndata: {json}\n\n", event.id)
            }
            Ok(None) => return None,
            Err(_silence) => ": keepalive\n\n".to_owned(),
        };
        Some((Ok(Bytes::from(frame)), events))
    })
}

#[cfg(test)]
mod tests {
    use fuse_model::{State as Life, now};

    use super::*;

    fn event() -> EnvironmentEvent {
        EnvironmentEvent {
            id: "0123456789abcdef0123456789abcdef".parse().unwrap(),
            environment_id: EnvironmentId::new("fuse-a"),
            state: Life::Running,
            url: String::new(),
            error: String::new(),
            step: None,
            at: now(),
        }
    }

    #[tokio::test]
    async fn silence_is_filled_with_comments_until_the_end() {
        assert_eq!(KEEPALIVE, Duration::from_secs(15));
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let events = stream::unfold(receiver, |mut receiver| async move {
            Some((receiver.recv().await?, receiver))
        });
        // However short the interval, an event that is there goes first.
        let mut frames = Box::pin(frames(events, Duration::from_millis(1)));
        let mut next = async || match frames.next().await {
            Some(Ok(frame)) => String::from_utf8(frame.to_vec()).unwrap(),
            Some(Err(e)) => match e {},
            None => "end".to_owned(),
        };
        let comment = ": keepalive\n\n";
        assert_eq!(next().await, comment);
        assert_eq!(next().await, comment);
        sender.send(event()).await.unwrap();
        let record = next().await;
        assert!(
            record.starts_with("id: 0123456789abcdef0123456789abcdef\ndata: {")
                && record.ends_with("}\n\n"),
            "{record}"
        );
        assert_eq!(next().await, comment);
        drop(sender);
        assert_eq!(next().await, "end");
    }
}
