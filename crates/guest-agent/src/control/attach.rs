//! Handing a connection over to a command.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest as _, RawQuery, Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use fuse_wire_attach::PROTOCOL;
use hyper_util::rt::TokioIo;

use super::Control;
use super::body::JsonBody;
use super::error::ApiError;

/// The command is in the query.
pub(super) async fn attach(
    State(control): State<Arc<Control>>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, ApiError> {
    let wanted = fuse_wire_attach::Request::from_query(&query.unwrap_or_default());
    start(&control, request, wanted.map_err(ApiError::from)).await
}

/// The command is in the body, for one that is too long for a query.
pub(super) async fn attach_long(
    State(control): State<Arc<Control>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let upgrade = Request::from_parts(head.clone(), Body::empty());
    let body = Request::from_parts(head, body);
    let wanted = JsonBody::from_request(body, &control).await;
    start(&control, upgrade, wanted.map(|body| body.value)).await
}

/// The command runs before the connection is handed over, so that a request that cannot be is
/// answered like any other.
async fn start(
    control: &Arc<Control>,
    mut request: Request,
    wanted: Result<fuse_wire_attach::Request, ApiError>,
) -> Result<Response, ApiError> {
    control.usable()?;
    let asked = request.headers().get(UPGRADE);
    if !asked.is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes())) {
        return Err(ApiError::NoUpgrade);
    }
    let wanted = wanted?;
    let connection = hyper::upgrade::on(&mut request);
    let attached = control.executor.attach(wanted).await?;
    control.executor.spawn(async move {
        match connection.await {
            Ok(connection) => attached.serve(TokioIo::new(connection)).await,
            Err(error) => tracing::debug!(%error, "the host left before it was attached"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    Ok(response)
}
