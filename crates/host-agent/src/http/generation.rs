//! Refuses callers that have no generation of the contract in common with this agent, and states its
//! own in every answer, refusals included.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use fuse_wire_host::{Generations, generation};

use super::ApiError;

pub(super) async fn negotiate(request: Request, next: Next) -> Response {
    let theirs = Generations::stated_in(request.headers());
    let mut response = match Generations::OURS.common(theirs) {
        Some(_) => next.run(request).await,
        None => ApiError::generation(theirs).into_response(),
    };
    if let Ok(ours) = HeaderValue::from_str(&Generations::OURS.to_string()) {
        response.headers_mut().insert(generation::HEADER, ours);
    }
    response
}
