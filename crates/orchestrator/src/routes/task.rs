//! `/v1/tasks`.

use axum::{
    Json,
    extract::{Path, State},
};
use fuse_model::TaskId;
use fuse_wire_api::Task;

use crate::{
    http::{ApiError, App, Principal},
    views,
};

pub(super) async fn get(
    State(app): State<App>,
    principal: Principal,
    id: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Json<Task>, ApiError> {
    let id = super::path_id(id, "task")?;
    let id = TaskId::new(id);
    let (task, output) = app.control.task_get(&id, &principal.tenant()).await?;
    Ok(Json(views::task(task, output)))
}
