//! `GET /v1/environments/{id}/attach`: `fuse-attach/1`.
//!
//! The way to the guest is opened before the connection is taken over, so that every
//! failure is still an answer.

use axum::{
    extract::{Path, Request, State, rejection::PathRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use fuse_control::Attached;
use fuse_model::EnvironmentId;
use fuse_wire_api::Scope;
use fuse_wire_host::attach::{NO_TTY, PROTOCOL, Request as AttachRequest};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::http::{ApiError, App, Principal};

pub(super) async fn attach(
    State(app): State<App>,
    principal: Principal,
    id: Result<Path<String>, PathRejection>,
    mut request: Request,
) -> Result<Response, ApiError> {
    principal.require(Scope::Attach, "attach requires the master token")?;
    let handover = handover(&mut request)?.ok_or_else(|| {
        ApiError::invalid(format!("attach requires the header Upgrade: {PROTOCOL}"))
    })?;
    let query = request.uri().query().unwrap_or_default();
    let wanted = AttachRequest::from_query(query).map_err(|e| ApiError::invalid(e.to_string()))?;
    if !wanted.tty {
        return Err(ApiError::invalid(NO_TTY));
    }
    let id = EnvironmentId::new(super::path_id(id, "vm")?);
    let attached = app.control.attach(&id, &wanted).await?;
    Ok(handover.relay(attached))
}

/// A caller's wish to have its connection handed over.
pub(super) struct Handover(OnUpgrade);

/// `None` when the caller does not ask for it.
pub(super) fn handover(request: &mut Request) -> Result<Option<Handover>, ApiError> {
    let asked = request.headers().get(header::UPGRADE);
    if !asked.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes())) {
        return Ok(None);
    }
    match request.extensions_mut().remove::<OnUpgrade>() {
        Some(on_upgrade) => Ok(Some(Handover(on_upgrade))),
        None => Err(ApiError::invalid(format!(
            "{PROTOCOL} needs an HTTP/1.1 connection of its own"
        ))),
    }
}

impl Handover {
    /// Takes the connection over and connects it.
    pub(super) fn relay(self, attached: Attached) -> Response {
        attached.relay_on(async move { self.0.await.map(TokioIo::new) });
        let headers = [
            (header::UPGRADE, HeaderValue::from_static(PROTOCOL)),
            (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        ];
        (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
    }
}
