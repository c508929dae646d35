//! Around every request of the main router: `Server` header, request id, span, and the
//! answers for what has no route.

use std::any::Any;

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, Method, Uri, header::SERVER},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use fuse_wire_api::is_request_id;
use rand::Rng as _;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument as _;

use super::ApiError;
use crate::VERSION;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request, in its extensions.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub(super) String);

/// Names the request and the server.
pub(super) async fn identify(mut request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(&REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(|id| is_request_id(id))
        .map_or_else(new_request_id, str::to_owned);
    let span = tracing::info_span!(
        "request", request_id = id, method = %request.method(), path = request.uri().path()
    );
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = async {
        let response = next.run(request).await;
        tracing::debug!(status = response.status().as_u16(), "answered");
        response
    }
    .instrument(span)
    .await;
    let headers = response.headers_mut();
    // Ids are checked or made of hex digits, and the version is a build constant.
    if let Ok(value) = HeaderValue::try_from(id) {
        headers.insert(REQUEST_ID, value);
    }
    if let Ok(value) = HeaderValue::try_from(format!("fuse-orchestrator/{VERSION}")) {
        headers.insert(SERVER, value);
    }
    response
}

fn new_request_id() -> String {
    let mut bytes = [0u8; 16];
    rand::rng().fill_bytes(&mut bytes);
    format!("req_{}", hex::encode(bytes))
}

pub(super) async fn route_not_found(method: Method, uri: Uri) -> ApiError {
    ApiError::route_not_found(&method, uri.path())
}

/// The `Allow` header is added by the router.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    ApiError::method_not_allowed(&method, uri.path())
}

/// A panic is a defect: it ends the request, not the connection or the process.
pub(super) fn catch_panic() -> CatchPanicLayer<fn(Box<dyn Any + Send>) -> Response> {
    CatchPanicLayer::custom(panicked)
}

fn panicked(_payload: Box<dyn Any + Send>) -> Response {
    // The panic hook has written message and place to standard error.
    tracing::error!("a handler panicked");
    ApiError::internal().into_response()
}
