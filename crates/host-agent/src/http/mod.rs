//! The host contract over HTTP/1.1. Thin: read, one call, answer.
//!
//! [`server`] accepts connections and bounds them, `auth` asks for the token before anything
//! else, `generation` refuses callers of a release too far away, `body` reads a request body by the contract's rules, `routes` are the handlers, and
//! `error` alone maps errors to statuses and texts.

mod artifacts;
mod attach;
mod auth;
mod body;
mod error;
mod generation;
mod logs;
mod routes;
pub mod server;
mod snapshots;

#[cfg(test)]
mod gpu_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::HeaderValue;
use axum::http::header::SERVER;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{delete, get, post};
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;

use crate::config::Config;
use crate::registry::Registry;
pub(crate) use error::ApiError;

/// Uploads that are held in memory at a time; each may take a few times its limit.
const UPLOADS: usize = 4;
/// How long an upload may wait for its turn.
const UPLOAD_WAIT: Duration = Duration::from_secs(30);

/// What handlers work with.
#[derive(Debug, Clone)]
pub struct App {
    registry: Registry,
    config: Arc<Config>,
    uploads: Arc<Semaphore>,
}

impl App {
    /// Serves `registry`.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        let config = Arc::clone(&registry.host().config);
        Self {
            registry,
            config,
            uploads: Arc::new(Semaphore::new(UPLOADS)),
        }
    }

    /// All routes.
    pub fn router(self) -> Router {
        let routes = if self.serves_artifacts() {
            artifacts::routes()
        } else {
            Router::new()
        };
        routes
            .route("/", get(routes::health))
            .route("/healthz", get(routes::health))
            .route("/metrics", get(routes::metrics))
            .route("/v1/capacity", get(routes::capacity))
            .route("/v1/vm", get(routes::list).post(routes::create))
            .route("/v1/vm/{id}", get(routes::get).delete(routes::delete))
            .route("/v1/vm/{id}/upload", post(routes::upload))
            .route("/v1/vm/{id}/exec", post(routes::exec))
            .route(
                "/v1/vm/{id}/attach",
                get(attach::attach).post(attach::attach_long),
            )
            .route("/v1/vm/{id}/start-agent", post(routes::start_agent))
            .route("/v1/vm/{id}/logs", get(logs::read))
            .route("/v1/vm/{id}/failure", get(logs::failure))
            .route("/v1/vm/{id}/snapshot", post(snapshots::take))
            .route("/v1/vm/{id}/snapshots", get(snapshots::list))
            .route(
                "/v1/vm/{id}/snapshots/{sid}",
                delete(snapshots::delete_of_vm),
            )
            .route("/v1/vm/{id}/restore", post(snapshots::restore))
            .route("/v1/vm/{id}/fork", post(snapshots::fork))
            .route("/v1/snapshots/{sid}", delete(snapshots::delete))
            .fallback(routes::unknown)
            .method_not_allowed_fallback(routes::unknown)
            // Bodies are bounded by `body`, by the rules of the contract.
            .layer(DefaultBodyLimit::disable())
            .layer(from_fn_with_state(self.clone(), auth::require_token))
            .layer(from_fn(generation::negotiate))
            .layer(CatchPanicLayer::custom(error::panicked))
            .layer(from_fn_with_state(self.clone(), add_server))
            .with_state(self)
    }
}

impl App {
    /// Whether disks of snapshots come from here and go to here. Where there are none, those routes are
    /// unknown like any other.
    fn serves_artifacts(&self) -> bool {
        self.registry.snapshots_possible().is_ok()
    }
}

async fn add_server(
    axum::extract::State(app): axum::extract::State<App>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = next.run(request).await;
    let server = HeaderValue::from_static(app.config.backend.server);
    response.headers_mut().insert(SERVER, server);
    response
}
