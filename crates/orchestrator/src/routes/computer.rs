//! `/v1/environments/{id}/computer`: a guest's screen, and `fuse-vnc/1`.

use axum::{
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, header},
    response::Response,
};
use fuse_model::EnvironmentId;
use fuse_wire_api::{ComputerAction, MAX_BODY_LARGE};

use crate::http::{ApiError, App, read_unhurried};

type Id = Result<Path<String>, PathRejection>;

const PROTOCOL: &str = "fuse-vnc/1";

pub(super) async fn act(State(app): State<App>, id: Id, body: Body) -> Result<Response, ApiError> {
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    let too_large = || ApiError::too_large("computer action body too large");
    let action: ComputerAction = read_unhurried(body, MAX_BODY_LARGE, too_large).await?;
    action.check()?;
    match app.control.computer(&id).await? {}
}

pub(super) async fn display(State(app): State<App>, id: Id) -> Result<Response, ApiError> {
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    match app.control.computer(&id).await? {}
}

pub(super) async fn stream(
    State(app): State<App>,
    id: Id,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let asked = headers.get(header::UPGRADE);
    if !asked.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes())) {
        return Err(ApiError::invalid(format!(
            "the computer stream requires the header Upgrade: {PROTOCOL}"
        )));
    }
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    match app.control.computer(&id).await? {}
}
