//! The handlers.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode};
use fuse_wire_host::{
    Capacity, CreateVmRequest, ExecRequest, ExecResponse, Health, StartAgentRequest,
    StartAgentResponse, UploadRequest, VmList, VmView, name,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ApiError, App, UPLOAD_WAIT, body};
use crate::capacity;
use crate::gpu::Inventory;

pub(super) type Answer<T> = Result<Json<T>, ApiError>;

/// `?prefix=`
#[derive(Debug, Deserialize)]
pub(super) struct ListQuery {
    #[serde(default)]
    prefix: String,
}

pub(super) async fn health(State(app): State<App>) -> Json<Health> {
    Json(Health {
        ok: true,
        app_name: app.config.backend.app_name.to_owned(),
    })
}

pub(super) async fn capacity(State(app): State<App>) -> Answer<Capacity> {
    let mut capacity =
        capacity::read(&app.config.paths.state).map_err(|error| ApiError::internal(&error))?;
    capacity.version = Some(crate::VERSION.to_owned());
    capacity.guests = u32::try_from(app.registry.list("").len()).ok();
    if let Some(qemu) = &app.config.qemu {
        let inventory = Inventory::read(&qemu.gpus).await;
        let inventory = inventory.map_err(|error| ApiError::internal(&error))?;
        inventory.describe(&mut capacity);
    }
    Ok(Json(capacity))
}

pub(super) async fn metrics(State(app): State<App>) -> Result<String, ApiError> {
    let host = app.registry.host();
    let standing = app.registry.standing();
    let text = host.metrics.text(&standing);
    text.map_err(|error| ApiError::internal(&error))
}

pub(super) async fn create(
    State(app): State<App>,
    headers: HeaderMap,
    body: Body,
) -> Answer<VmView> {
    let request: CreateVmRequest = app.read(&headers, body, app.config.http.body).await?;
    Ok(Json(app.registry.create(request).await?))
}

pub(super) async fn list(State(app): State<App>, Query(query): Query<ListQuery>) -> Json<VmList> {
    Json(VmList {
        vms: app.registry.list(&query.prefix),
        version: crate::VERSION.to_owned(),
    })
}

pub(super) async fn get(State(app): State<App>, Path(id): Path<String>) -> Answer<VmView> {
    Ok(Json(app.registry.get(&name::vm_id(&id))?))
}

pub(super) async fn delete(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.registry.delete(&name::vm_id(&id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn upload(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Value> {
    let turn = tokio::time::timeout(UPLOAD_WAIT, app.uploads.acquire()).await;
    let _turn = turn
        .ok()
        .and_then(Result::ok)
        .ok_or_else(|| ApiError::busy("the agent is busy with other uploads; try again shortly"))?;
    let request: UploadRequest = app.read(&headers, body, app.config.http.upload).await?;
    app.registry
        .lease(&name::vm_id(&id))?
        .upload(request)
        .await?;
    Ok(Json(json!({"ok": true})))
}

pub(super) async fn exec(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<ExecResponse> {
    let request: ExecRequest = app.read(&headers, body, app.config.http.body).await?;
    if request.cmd.is_empty() {
        return Err(ApiError::bad_request(
            "missing field: cmd must be a list with at least one word",
        ));
    }
    Ok(Json(
        app.registry.lease(&name::vm_id(&id))?.exec(request).await?,
    ))
}

pub(super) async fn start_agent(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<StartAgentResponse> {
    let request: StartAgentRequest = app.read(&headers, body, app.config.http.body).await?;
    request.validate().map_err(ApiError::bad_request)?;
    if request
        .download_url
        .as_deref()
        .is_some_and(|url| !url.is_empty())
    {
        return Err(ApiError::bad_request(
            "download_url is not supported: upload the program and name it in binary_path",
        ));
    }
    Ok(Json(
        app.registry.start_agent(&name::vm_id(&id), request).await?,
    ))
}

/// Whatever is not a route: 404 for the methods that the contract knows, 501 for others.
pub(super) async fn unknown(method: Method) -> ApiError {
    match method {
        Method::GET | Method::POST | Method::PUT | Method::DELETE => ApiError::unknown_route(),
        _ => ApiError::unknown_method(),
    }
}

impl App {
    pub(super) async fn read<T: serde::de::DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        body: Body,
        limit: usize,
    ) -> Result<T, ApiError> {
        body::json(headers, body, limit, self.config.http.idle).await
    }
}
