//! `/v1/environments/{id}/events` and `/v1/events`: server-sent events.

use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::HeaderMap,
    response::Response,
};
use bytes::Bytes;
use fuse_model::{EnvironmentEvent, EnvironmentId, EventId};
use futures_util::stream;

use super::sse;
use crate::{
    http::{ApiError, App, Query},
    views,
};

pub(super) async fn stream(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    let last = last_event_id(&headers, &query);
    let events = app.control.environment_events(&id, last).await?;
    Ok(sse::answer(stream::unfold(
        events,
        |mut events| async move { Some((events.next().await?.text(record), events)) },
    )))
}

/// Everything that happens in the fleet, from now on or from a known event on.
pub(super) async fn fleet(
    State(app): State<App>,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let last = last_event_id(&headers, &query);
    let events = app.control.fleet_events(last).await?;
    Ok(sse::answer(stream::unfold(
        events,
        |mut events| async move { Some((record(&events.next().await?), events)) },
    )))
}

/// An id that is not one of ours behaves as none.
fn last_event_id(headers: &HeaderMap, query: &Query) -> Option<EventId> {
    headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok())
        .or_else(|| query.get("last_event_id"))
        .and_then(|text| text.parse().ok())
}

fn record(event: &EnvironmentEvent) -> Bytes {
    let event = views::event(event.clone());
    // Records of plain fields always serialise.
    let json = serde_json::to_string(&event).unwrap_or_default();
    format!("id: {}\ndata: {json}\n\n", event.id).into()
}
