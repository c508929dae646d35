//! Handing a connection over to a command.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use fuse_wire_attach::PROTOCOL;
use hyper_util::rt::TokioIo;

use super::Control;
use super::error::ApiError;

/// The command runs before the connection is handed over, so that a request that cannot be is
/// answered like any other.
pub(super) async fn attach(
    State(control): State<Arc<Control>>,
    RawQuery(query): RawQuery,
    mut request: Request,
) -> Result<Response, ApiError> {
    control.usable()?;
    let asked = request.headers().get(UPGRADE);
    if !asked.is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(PROTOCOL.as_bytes())) {
        return Err(ApiError::NoUpgrade);
    }
    let wanted = fuse_wire_attach::Request::from_query(&query.unwrap_or_default())?;
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
