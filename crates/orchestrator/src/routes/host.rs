//! `/v1/hosts`.

use axum::{
    Json,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use fuse_control::{Registration, check_agent_url};
use fuse_model::{Evict, HostId};
use fuse_store::Page;
use fuse_wire_api::{Host, HostList, IdCursor, RegisterHost, page_limit};

use crate::{
    http::{ApiError, App, Limit, Query, read_required},
    views,
};

type Id = Result<Path<String>, PathRejection>;

pub(super) async fn register(
    State(app): State<App>,
    body: Body,
) -> Result<(StatusCode, Json<Host>), ApiError> {
    let mut request: RegisterHost = read_required(body, Limit::Small).await?;
    request.check(check_agent_url)?;
    let registration = app.control.host_register(request).await?;
    Ok((StatusCode::CREATED, Json(with_warnings(registration))))
}

fn with_warnings(registration: Registration) -> Host {
    let mut view = views::host(registration.host);
    view.warnings = registration.warnings;
    view
}

pub(super) async fn get(State(app): State<App>, id: Id) -> Result<Json<Host>, ApiError> {
    let id = HostId::new(super::path_id(id, "host")?);
    Ok(Json(views::host(app.control.host_get(&id).await?)))
}

pub(super) async fn list(State(app): State<App>, query: Query) -> Result<Json<HostList>, ApiError> {
    let after = IdCursor::decode(query.get("cursor"))?;
    let page = Page {
        after: after.map(|cursor| HostId::new(cursor.id)),
        limit: page_limit(query.get("limit")),
    };
    let listing = app.control.host_list(&page).await?;
    Ok(Json(HostList {
        hosts: listing.items.into_iter().map(views::host).collect(),
        next_cursor: listing.next.map(|id| {
            IdCursor {
                id: id.into_string(),
            }
            .encode()
        }),
    }))
}

pub(super) async fn act(
    State(app): State<App>,
    id: Id,
    query: Query,
) -> Result<Response, ApiError> {
    let id = HostId::new(super::path_id(id, "host")?);
    match query.get("action") {
        Some("cordon") => app.control.host_cordon(&id).await?,
        Some("uncordon") => app.control.host_uncordon(&id).await?,
        Some("drain") => {
            let evict = match query.get("evict").unwrap_or_default() {
                "" => Evict::None,
                name => name.parse().map_err(|_| {
                    ApiError::invalid("evict must be \"none\", \"migrate\" or \"drain\"")
                })?,
            };
            app.control.host_drain(&id, evict).await?;
        }
        Some("probe") => {
            let probed = app.control.host_probe(&id).await?;
            return Ok(Json(with_warnings(probed)).into_response());
        }
        _ => return Err(ApiError::unknown_action()),
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn remove(State(app): State<App>, id: Id) -> Result<StatusCode, ApiError> {
    let id = HostId::new(super::path_id(id, "host")?);
    app.control.host_remove(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}
