//! The handlers of snapshots, restores and forks.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use fuse_wire_host::{
    ForkRequest, RestoreRequest, RestoreResponse, Snapshot, SnapshotList, SnapshotRequest, VmView,
    artifact::is_snapshot_id, name,
};

use super::routes::Answer;
use super::{ApiError, App};

pub(super) async fn take(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Snapshot> {
    let request: SnapshotRequest = app.read(&headers, body, app.config.http.body).await?;
    app.registry.snapshots_possible()?;
    if let Some(id) = request
        .snapshot_id
        .as_deref()
        .filter(|id| !is_snapshot_id(id))
    {
        return Err(ApiError::bad_request(format!(
            "snapshot_id {id:?} is no id: letters, digits, dots, dashes and underscores, \
             at most 128, the first a letter or digit"
        )));
    }
    let taken = app.registry.snapshot(&name::vm_id(&id), request).await?;
    Ok(Json(taken))
}

pub(super) async fn list(State(app): State<App>, Path(id): Path<String>) -> Answer<SnapshotList> {
    app.registry.snapshots_possible()?;
    let snapshots = app.registry.snapshots(&name::vm_id(&id))?;
    Ok(Json(SnapshotList { snapshots }))
}

pub(super) async fn restore(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<RestoreResponse> {
    let request: RestoreRequest = app.read(&headers, body, app.config.http.body).await?;
    required(&request.snapshot_id)?;
    app.registry.snapshots_possible()?;
    let id = name::vm_id(&id);
    let restored = app.registry.restore(&id, &request.snapshot_id).await?;
    Ok(Json(restored))
}

pub(super) async fn fork(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer<VmView> {
    let request: ForkRequest = app.read(&headers, body, app.config.http.body).await?;
    required(&request.snapshot_id)?;
    app.registry.snapshots_possible()?;
    let forked = app.registry.fork(&name::vm_id(&id), request).await?;
    Ok(Json(forked))
}

pub(super) async fn delete(
    State(app): State<App>,
    Path(snapshot_id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.registry.snapshots_possible()?;
    // Or it would be there a moment later.
    app.registry.artifacts().give_up(&snapshot_id).await;
    app.registry.delete_snapshot(&snapshot_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The same under the VM it was taken of, which need not exist any more.
pub(super) async fn delete_of_vm(
    app: State<App>,
    Path((_, snapshot_id)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    delete(app, Path(snapshot_id)).await
}

fn required(snapshot_id: &str) -> Result<(), ApiError> {
    if snapshot_id.is_empty() {
        return Err(ApiError::bad_request("missing field: snapshot_id"));
    }
    Ok(())
}
