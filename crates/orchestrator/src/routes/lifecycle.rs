//! The actions on an environment that are no commands: `POST /v1/environments/{id}?action=`.

use axum::{
    Json,
    body::Body,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use fuse_control::Once;
use fuse_model::{Environment, EnvironmentId};
use fuse_wire_api::{ForkEnvironment, MigrateEnvironment};

use crate::{
    http::{ApiError, App, Limit, Principal, read_optional},
    views,
};

use super::{environment, once};

pub(super) async fn drain(app: &App, id: &EnvironmentId) -> Result<Response, ApiError> {
    let drained = app.control.environment_drain(id).await?;
    Ok(shown(StatusCode::OK, drained))
}

pub(super) async fn rotate_token(app: &App, id: &EnvironmentId) -> Result<Response, ApiError> {
    app.control.environment_rotate_token(id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(super) async fn fork(
    app: &App,
    principal: &Principal,
    headers: &HeaderMap,
    id: &EnvironmentId,
    body: Body,
) -> Result<Response, ApiError> {
    let request: ForkEnvironment = read_optional(body, Limit::Small).await?;
    let tenant = principal.tenant();
    let is_async = environment::prefers_async(headers);
    let Some(key) = once::key_of_action(headers, "fork", id, &request)? else {
        let creation = app.control.environment_fork(id, request, tenant).await?;
        return environment::answer(creation, is_async).await;
    };
    let once = Once {
        key,
        wording: once::wording,
    };
    let forked = app.control.environment_fork_once(id, request, tenant, once);
    environment::answer_once(app, forked.await?, is_async).await
}

pub(super) async fn migrate(
    app: &App,
    headers: &HeaderMap,
    id: &EnvironmentId,
    body: Body,
) -> Result<Response, ApiError> {
    let request: MigrateEnvironment = read_optional(body, Limit::Small).await?;
    // An environment that is not there comes before a request that makes no sense.
    app.control.environment_get(id).await?;
    request.check()?;
    let migration = app.control.environment_migrate(id, &request).await?;
    environment::answer(migration, environment::prefers_async(headers)).await
}

/// The environment, or no content if it vanished before it could be shown.
fn shown(status: StatusCode, environment: Option<Environment>) -> Response {
    match environment {
        Some(environment) => (status, Json(views::environment(environment))).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}
