//! Every route. A test fails when one is added here without a row in its table.

mod environment;
mod event;
mod host;
mod service;
mod task;

use axum::{
    Router,
    extract::{Path, rejection::PathRejection},
    http::Method,
    routing::{MethodFilter, MethodRouter, on},
};

use crate::http::{ApiError, App};

/// A route of the main router; all of them need a credential.
pub(crate) struct Route {
    #[cfg_attr(not(test), expect(dead_code, reason = "the table test reads it"))]
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) handler: MethodRouter<App>,
}

macro_rules! routes {
    ($($method:ident $path:literal => $handler:path;)*) => {
        vec![$(Route {
            method: Method::$method,
            path: $path,
            handler: on(MethodFilter::$method, $handler),
        },)*]
    };
}

/// The routes behind authentication.
pub(crate) fn table() -> Vec<Route> {
    routes! {
        GET    "/v1/environments"             => environment::list;
        POST   "/v1/environments"             => environment::create;
        GET    "/v1/environments/{id}"        => environment::get;
        POST   "/v1/environments/{id}"        => environment::act;
        DELETE "/v1/environments/{id}"        => environment::destroy;
        GET    "/v1/environments/{id}/events" => event::stream;
        GET    "/v1/tasks/{id}"               => task::get;
        GET    "/v1/hosts"                    => host::list;
        POST   "/v1/hosts"                    => host::register;
        GET    "/v1/hosts/{id}"               => host::get;
        POST   "/v1/hosts/{id}"               => host::act;
        DELETE "/v1/hosts/{id}"               => host::remove;
    }
}

/// The probes, in front of everything.
pub(crate) fn outer(app: App) -> Router {
    Router::new()
        .route("/health", axum::routing::get(service::health))
        .route("/ready", axum::routing::get(service::ready))
        .route("/v1/version", axum::routing::get(service::version))
        .with_state(app)
}

/// The decoded `{id}` of a path. Ids that nothing can have are answered like ids that
/// nothing has.
fn path_id(id: Result<Path<String>, PathRejection>, what: &str) -> Result<String, ApiError> {
    match id {
        Ok(Path(id)) if !id.contains('\0') => Ok(id),
        Ok(_) | Err(_) => Err(ApiError::not_found(format!(
            "{what} not found: the id is not valid"
        ))),
    }
}

#[cfg(test)]
mod tests;
