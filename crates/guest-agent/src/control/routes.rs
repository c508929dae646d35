//! The routes: each reads its request, makes one call and answers.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use fuse_wire_guest::control::{
    ClockRequest, ClockResponse, ExecRequest, ExecResponse, MAX_BODY_BYTES, PowerRequest, Status,
    SurfaceRequest, SurfaceStatus, UploadRequest, UploadResponse, path,
};
use futures_util::TryStreamExt as _;
use serde::Deserialize;

use super::body::JsonBody;
use super::error::ApiError;
use super::{Control, attach, log, snapshot};
use crate::clock;
use crate::files::{self, Target};

/// The control API.
pub(crate) fn router(control: Arc<Control>) -> Router {
    Router::new()
        .route(path::STATUS, get(status))
        .route(path::EXEC, post(exec))
        .route(path::FILES, post(upload_files))
        .route(
            path::FILE,
            put(upload_file).layer(DefaultBodyLimit::disable()),
        )
        .route(path::CLOCK, post(set_clock))
        .route(path::SURFACE, post(start_surface))
        .route(path::POWER, post(power))
        .route(path::ATTACH, get(attach::attach).post(attach::attach_long))
        .route(path::LOG, get(log::log))
        .merge(snapshot::routes())
        .fallback(async || ApiError::NotFound)
        .method_not_allowed_fallback(async || ApiError::Method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(control)
}

pub(super) type Shared = State<Arc<Control>>;

async fn status(State(control): Shared) -> Json<Status> {
    Json(control.identity.status(control.surface.status()))
}

async fn exec(
    State(control): Shared,
    body: JsonBody<ExecRequest>,
) -> Result<Json<ExecResponse>, ApiError> {
    control.usable()?;
    Ok(Json(control.executor.run(body.value).await?))
}

async fn upload_files(
    State(control): Shared,
    body: JsonBody<UploadRequest>,
) -> Result<Json<UploadResponse>, ApiError> {
    control.usable()?;
    blocking(move || {
        let mut written = 0;
        for file in &body.value.files {
            let target = Target::parse(&file.path, file.mode.as_deref())?;
            files::write(target, file.content_b64.as_ref())?;
            written += 1;
        }
        Ok(Json(UploadResponse { written }))
    })
    .await
}

#[derive(Debug, Deserialize)]
struct FileQuery {
    path: String,
    mode: Option<String>,
}

async fn upload_file(
    State(control): Shared,
    query: Result<Query<FileQuery>, QueryRejection>,
    body: Body,
) -> Result<Json<UploadResponse>, ApiError> {
    control.usable()?;
    let Query(query) = query.map_err(|_| ApiError::Query)?;
    let target = Target::parse(&query.path, query.mode.as_deref())?;
    let mut draft = blocking(move || Ok(target.create()?)).await?;
    let mut chunks = body.into_data_stream();
    loop {
        let batch = next_batch(&mut chunks).await?;
        if batch.is_empty() {
            blocking(move || Ok(draft.place()?)).await?;
            return Ok(Json(UploadResponse { written: 1 }));
        }
        draft = blocking(move || {
            batch.iter().try_for_each(|chunk| draft.write(chunk))?;
            Ok(draft)
        })
        .await?;
    }
}

/// Bytes that are gathered before they are written: every write goes through
/// another thread, and the host sends a few KiB at a time.
const BATCH_BYTES: usize = 256 * 1024;

/// The next chunks of a body, none at its end.
async fn next_batch(chunks: &mut BodyDataStream) -> Result<Vec<Bytes>, ApiError> {
    let (mut batch, mut size) = (Vec::new(), 0);
    while size < BATCH_BYTES
        && let Some(chunk) = chunks.try_next().await.map_err(|_| ApiError::CutShort)?
    {
        size += chunk.len();
        batch.push(chunk);
    }
    Ok(batch)
}

async fn set_clock(body: JsonBody<ClockRequest>) -> Result<Json<ClockResponse>, ApiError> {
    let ClockRequest {
        unix_micros,
        tolerance_micros,
    } = body.value;
    let offset_micros = clock::set(unix_micros, tolerance_micros)?;
    Ok(Json(ClockResponse { offset_micros }))
}

async fn start_surface(
    State(control): Shared,
    body: JsonBody<SurfaceRequest>,
) -> Result<Json<SurfaceStatus>, ApiError> {
    control.usable()?;
    Ok(Json(control.surface.start(body.value).await?))
}

async fn power(
    State(control): Shared,
    body: JsonBody<PowerRequest>,
) -> Result<StatusCode, ApiError> {
    control
        .power
        .try_send(body.value.action)
        .map_err(|_| ApiError::GoingDown)?;
    Ok(StatusCode::ACCEPTED)
}

impl Control {
    /// Refuses what needs a root file system when there is none.
    pub(super) fn usable(&self) -> Result<(), ApiError> {
        match &self.identity.error {
            None => Ok(()),
            Some(error) => Err(ApiError::Unusable(error.clone())),
        }
    }
}

/// Runs file system work off the runtime's threads.
pub(super) async fn blocking<T, F>(work: F) -> Result<T, ApiError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, ApiError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ApiError::Internal(error.to_string())),
    }
}
