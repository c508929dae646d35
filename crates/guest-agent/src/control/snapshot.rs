//! The routes around a snapshot.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use fuse_wire_guest::control::ClockResponse;
use fuse_wire_guest::snapshot::{
    FreezeRequest, FreezeResponse, ResumedRequest, SEED_BYTES, SeedRequest, ThawResponse, path,
};

use super::Control;
use super::body::JsonBody;
use super::error::ApiError;
use super::routes::{Shared, blocking};
use crate::{clock, seed};

pub(super) fn routes() -> Router<Arc<Control>> {
    Router::new()
        .route(path::FREEZE, post(freeze))
        .route(path::THAW, post(thaw))
        .route(path::SEED, post(take_seed))
        .route(path::RESUMED, post(resumed))
}

async fn freeze(
    State(control): Shared,
    body: JsonBody<FreezeRequest>,
) -> Result<Json<FreezeResponse>, ApiError> {
    control.usable()?;
    let freezer = Arc::clone(&control.freezer);
    let hold = Duration::from_millis(body.value.hold_ms);
    let frozen = blocking(move || Ok(freezer.freeze(hold)?)).await?;
    Ok(Json(FreezeResponse { frozen }))
}

async fn thaw(State(control): Shared) -> Result<Json<ThawResponse>, ApiError> {
    let freezer = Arc::clone(&control.freezer);
    let held = blocking(move || Ok(freezer.thaw())).await?;
    Ok(Json(ThawResponse { held }))
}

async fn take_seed(body: JsonBody<SeedRequest>) -> Result<StatusCode, ApiError> {
    if let Some(unix_micros) = body.value.unix_micros {
        clock::set(unix_micros, 0)?;
    }
    apply_seed(body.value.seed_b64.0).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The clock first: it is what programs notice.
async fn resumed(
    State(control): Shared,
    body: JsonBody<ResumedRequest>,
) -> Result<Json<ClockResponse>, ApiError> {
    let offset_micros = clock::set(body.value.unix_micros, 0)?;
    apply_seed(body.value.seed_b64.0).await?;
    // A snapshot may have been taken in the middle of another one.
    let freezer = Arc::clone(&control.freezer);
    blocking(move || Ok(freezer.thaw())).await?;
    tracing::info!(offset_micros, "going on from a snapshot");
    Ok(Json(ClockResponse { offset_micros }))
}

async fn apply_seed(bytes: Vec<u8>) -> Result<(), ApiError> {
    if bytes.len() != SEED_BYTES {
        return Err(ApiError::Body(format!("a seed has {SEED_BYTES} bytes")));
    }
    blocking(move || seed::apply(&bytes).map_err(ApiError::Seed)).await
}
