//! `/v1/environments`.

use axum::{
    Json,
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{HeaderMap, HeaderName, StatusCode},
    response::{IntoResponse as _, Response},
};
use fuse_control::{CreatedOnce, Creation};
use fuse_model::{self as model, EnvironmentId, HostId, State as LifeState, TaskId};
use fuse_store::{EnvironmentFilter, Page};
use fuse_wire_api::{CreateEnvironment, Environment, EnvironmentList, IdCursor, page_limit};

use crate::{
    http::{ApiError, App, Limit, Principal, Query, read_required},
    views,
};

use super::{exec, lifecycle, once};

type Id = Result<Path<String>, PathRejection>;

const PREFER: HeaderName = HeaderName::from_static("prefer");
pub(super) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
pub(super) const RESPOND_ASYNC: &str = "respond-async";

pub(super) async fn create(
    State(app): State<App>,
    principal: Principal,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut request: CreateEnvironment = read_required(body, Limit::Large).await?;
    request.check_head()?;
    if !request.spec.host_id.is_empty() {
        app.control
            .check_pin(&HostId::new(request.spec.host_id.clone()))
            .await?;
    }
    let once = once::key_of(&headers, &request)?;
    let (request, tenant) = (request.check_tail()?, principal.tenant());
    let is_async = prefers_async(&headers);
    let Some(once) = once else {
        let creation = app.control.environment_create(request, tenant).await?;
        return answer(creation, is_async).await;
    };
    let created = app.control.environment_create_once(request, tenant, once);
    answer_once(&app, created.await?, is_async).await
}

/// Answers a create, or a fork, that came with a key.
pub(super) async fn answer_once(
    app: &App,
    created: CreatedOnce,
    is_async: bool,
) -> Result<Response, ApiError> {
    match created {
        CreatedOnce::New(creation) => answer(*creation, is_async).await,
        CreatedOnce::Answered(given) => Ok(once::replay(given)),
        CreatedOnce::UnderWay(repeat) => {
            if is_async && let Ok(record) = app.control.environment_get(&repeat.environment).await {
                return Ok(accepted(record, Vec::new()));
            }
            Ok(once::replay(app.control.environment_created(repeat).await?))
        }
    }
}

/// Answers a create, or a fork, without a key.
pub(super) async fn answer(creation: Creation, is_async: bool) -> Result<Response, ApiError> {
    let warnings = creation.warnings().to_vec();
    if is_async {
        return Ok(accepted(creation.accepted().clone(), warnings));
    }
    let environment = creation.finished().await?;
    let shown = with_warnings(environment, warnings);
    Ok((StatusCode::CREATED, shown).into_response())
}

fn accepted(record: model::Environment, warnings: Vec<String>) -> Response {
    let applied = [(PREFERENCE_APPLIED, RESPOND_ASYNC)];
    let shown = with_warnings(record, warnings);
    (StatusCode::ACCEPTED, applied, shown).into_response()
}

fn with_warnings(record: model::Environment, warnings: Vec<String>) -> Json<Environment> {
    Json(Environment {
        warnings,
        ..views::environment(record)
    })
}

/// `Prefer: respond-async`, alone or among other preferences (RFC 7240).
pub(super) fn prefers_async(headers: &HeaderMap) -> bool {
    headers
        .get_all(PREFER)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|preference| preference.split(';').next())
        .any(|token| token.trim().eq_ignore_ascii_case(RESPOND_ASYNC))
}

pub(super) async fn get(State(app): State<App>, id: Id) -> Result<Json<Environment>, ApiError> {
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    Ok(Json(views::environment(
        app.control.environment_get(&id).await?,
    )))
}

pub(super) async fn list(
    State(app): State<App>,
    principal: Principal,
    query: Query,
) -> Result<Json<EnvironmentList>, ApiError> {
    let after = IdCursor::decode(query.get("cursor"))?;
    let page = Page {
        after: after.map(|cursor| EnvironmentId::new(cursor.id)),
        limit: page_limit(query.get("limit")),
    };
    // A value that nothing can have matches nothing.
    let Some(mut filter) = filter(&query) else {
        return Ok(Json(EnvironmentList::default()));
    };
    filter.tenant = app.kept_to(&principal);
    let listing = app.control.environment_list(&filter, &page).await?;
    Ok(Json(EnvironmentList {
        environments: listing.items.into_iter().map(views::environment).collect(),
        next_cursor: listing.next.map(|id| {
            IdCursor {
                id: id.into_string(),
            }
            .encode()
        }),
    }))
}

fn filter(query: &Query) -> Option<EnvironmentFilter> {
    let text = |key| match query.get(key) {
        Some(value) if value.contains('\0') => None,
        value => Some(value),
    };
    let state = match query.get("state") {
        None => None,
        Some(name) => Some(
            name.parse::<LifeState>()
                .ok()
                .filter(|state| !state.is_terminal())?,
        ),
    };
    Some(EnvironmentFilter {
        task_id: text("task_id")?.map(TaskId::new),
        state,
        host_id: text("host_id")?.map(HostId::new),
        tenant: None,
    })
}

pub(super) async fn destroy(State(app): State<App>, id: Id) -> Result<StatusCode, ApiError> {
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    app.control.environment_destroy(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn act(
    State(app): State<App>,
    principal: Principal,
    id: Id,
    query: Query,
    request: Request,
) -> Result<Response, ApiError> {
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    match query.get("action") {
        Some("exec") => exec::exec(&app, &principal, &id, &query, request).await,
        Some("fork") => {
            let (head, body) = request.into_parts();
            lifecycle::fork(&app, &principal, &head.headers, &id, body).await
        }
        Some("migrate") => {
            let (head, body) = request.into_parts();
            lifecycle::migrate(&app, &head.headers, &id, body).await
        }
        Some("drain") => lifecycle::drain(&app, &id).await,
        Some("rotate-token") => lifecycle::rotate_token(&app, &id).await,
        _ => Err(ApiError::unknown_action()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferences() {
        let prefers = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(PREFER, value.parse().unwrap());
            }
            prefers_async(&headers)
        };
        assert!(prefers(&["respond-async"]));
        assert!(prefers(&["return=minimal, Respond-Async; wait=5"]));
        assert!(prefers(&["wait=5", "respond-async"]));
        assert!(!prefers(&[]));
        assert!(!prefers(&["respond-async-later"]));
    }
}
