//! Which source addresses are let in. What counts is the TCP peer, or whom a trusted proxy names (see
//! `proxies`). An empty list lets everybody in.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use fuse_model::AuditKind;

use super::{ApiError, App, auth};
use crate::server::Peer;

/// Middleware in front of the routes.
pub(super) async fn admit(State(app): State<App>, request: Request, next: Next) -> Response {
    if app.allowlist.is_empty() {
        return next.run(request).await;
    }
    let Some(peer) = request.extensions().get::<Peer>().copied() else {
        return refuse("could not parse remote address");
    };
    if app.allowlist.hold(peer.address) {
        return next.run(request).await;
    }
    let (parts, _body) = request.into_parts();
    app.control
        .audit(auth::refusal(AuditKind::IpRejected, &parts));
    refuse("source address not in allowlist")
}

fn refuse(message: &str) -> Response {
    ApiError::forbidden(message).into_response()
}
