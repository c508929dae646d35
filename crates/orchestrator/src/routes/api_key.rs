//! `/v1/api-keys`, where the store is durable.

use axum::{
    Json,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
};
use fuse_model::ApiKeyId;
use fuse_wire_api::{ApiKeyList, CreateApiKey, CreatedApiKey};

use crate::{
    http::{ApiError, App, Limit, read_optional},
    views,
};

/// Every path of these routes.
pub(crate) const PATHS: [&str; 2] = ["/v1/api-keys", "/v1/api-keys/{id}"];

/// Whether a path of the table is one of these.
pub(crate) fn is_of_keys(path: &str) -> bool {
    PATHS.contains(&path)
}

pub(super) async fn create(
    State(app): State<App>,
    body: Body,
) -> Result<(StatusCode, Json<CreatedApiKey>), ApiError> {
    let request: CreateApiKey = read_optional(body, Limit::Small).await?;
    let (label, scopes) = request.check()?;
    let minted = app.control.api_key_create(label, &scopes).await?;
    let created = CreatedApiKey {
        metadata: views::api_key(minted.record),
        key: minted.raw.expose().clone(),
    };
    Ok((StatusCode::CREATED, Json(created)))
}

pub(super) async fn list(State(app): State<App>) -> Result<Json<ApiKeyList>, ApiError> {
    let keys = app.control.api_key_list().await?;
    Ok(Json(ApiKeyList {
        api_keys: keys.into_iter().map(views::api_key).collect(),
    }))
}

pub(super) async fn revoke(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    let id = ApiKeyId::new(super::path_id(id, "api key")?);
    app.control.api_key_revoke(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What stands for all of these where keys would not survive the process.
pub(crate) async fn disabled() -> ApiError {
    ApiError::keys_disabled()
}
