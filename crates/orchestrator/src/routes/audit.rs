//! `/v1/audit` and `/v1/dead-letters`.

use axum::{Json, extract::State};
use fuse_store::{AuditFilter, Page};
use fuse_wire_api::{AuditEventList, DeadLetterList, IdCursor, Violation, page_limit};
use jiff::Timestamp;

use crate::{
    http::{ApiError, App, Query},
    views,
};

pub(super) async fn events(
    State(app): State<App>,
    query: Query,
) -> Result<Json<AuditEventList>, ApiError> {
    let after = match IdCursor::decode(query.get("cursor"))? {
        None => None,
        Some(cursor) => Some(cursor.id.parse().map_err(|_| bad_cursor())?),
    };
    let page = Page {
        after,
        limit: page_limit(query.get("limit")),
    };
    let text = |key| query.get(key).map(str::to_owned);
    let filter = AuditFilter {
        entity_type: text("entity_type"),
        entity_id: text("entity_id"),
        kind: text("type"),
        since: time(&query, "since")?,
        until: time(&query, "until")?,
    };
    let listing = app.control.audit_list(&filter, &page).await?;
    Ok(Json(AuditEventList {
        audit_events: listing.items.into_iter().map(views::audit_event).collect(),
        next_cursor: listing.next.map(|place| cursor(place.to_string())),
    }))
}

pub(super) async fn dead_letters(
    State(app): State<App>,
    query: Query,
) -> Result<Json<DeadLetterList>, ApiError> {
    let after = match IdCursor::decode(query.get("cursor"))? {
        None => None,
        Some(cursor) => {
            let (kind, entity) = cursor.id.split_once('/').ok_or_else(bad_cursor)?;
            Some((kind.to_owned(), entity.to_owned()))
        }
    };
    let page = Page {
        after,
        limit: page_limit(query.get("limit")),
    };
    let listing = app.control.dead_letter_list(&page).await?;
    Ok(Json(DeadLetterList {
        dead_letters: listing.items.into_iter().map(views::dead_letter).collect(),
        // Kinds are names of ours, without a slash.
        next_cursor: listing
            .next
            .map(|(kind, entity)| cursor(format!("{kind}/{entity}"))),
    }))
}

fn cursor(id: String) -> String {
    IdCursor { id }.encode()
}

fn bad_cursor() -> Violation {
    Violation::Invalid("invalid pagination cursor".to_owned())
}

fn time(query: &Query, key: &str) -> Result<Option<Timestamp>, ApiError> {
    query
        .get(key)
        .map(|text| {
            text.parse()
                .map_err(|_| ApiError::invalid(format!("{key} is not a time (RFC 3339)")))
        })
        .transpose()
}
