//! `/v1/tasks`.

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use fuse_model::TaskId;
use fuse_wire_api::Task;

use super::logs;
use crate::{
    http::{ApiError, App, Principal, Query},
    views,
};

type Id = Result<Path<String>, PathRejection>;

pub(super) async fn get(
    State(app): State<App>,
    principal: Principal,
    id: Id,
) -> Result<Json<Task>, ApiError> {
    let id = TaskId::new(super::path_id(id, "task")?);
    let found = app.control.task_get(&id, &principal.tenant()).await?;
    Ok(Json(views::task(found)))
}

pub(super) async fn read_logs(
    State(app): State<App>,
    principal: Principal,
    id: Id,
    query: Query,
) -> Result<Response, ApiError> {
    let id = TaskId::new(super::path_id(id, "task")?);
    let (source, phase) = logs::wanted(&query)?;
    let caller = principal.tenant();
    let text = app.control.task_logs(&id, &caller, source, phase).await?;
    Ok(logs::whole(text))
}
