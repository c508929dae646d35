//! `/v1/environments/{id}/events`: server-sent events.

use std::{convert::Infallible, time::Duration};

use axum::{
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use fuse_control::EventStream;
use fuse_model::EnvironmentId;
use futures_util::{Stream, stream};

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
    let last = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok())
        .or_else(|| query.get("last_event_id"))
        // An id that is not one of ours behaves as none.
        .and_then(|text| text.parse().ok());
    let events = app.control.environment_events(&id, last).await?;
    let mut response = Response::new(Body::from_stream(frames(events)));
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
    Ok(response)
}

fn frames(events: EventStream) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold(events, |mut events| async move {
        let frame = match tokio::time::timeout(KEEPALIVE, events.next()).await {
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
