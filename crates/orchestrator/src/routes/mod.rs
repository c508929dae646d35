//! Every route. Tests fail when one is added here without a row in the table of who may
//! call it, or without an entry in the OpenAPI document.

pub(crate) mod api_key;
mod attach;
mod audit;
mod computer;
mod environment;
mod event;
mod exec;
mod host;
mod lifecycle;
mod logs;
mod once;
mod placement;
mod service;
mod session;
mod snapshot;
mod sse;
mod task;

use axum::{
    extract::{Path, rejection::PathRejection},
    http::Method,
    routing::{MethodFilter, MethodRouter, on},
};

use crate::{
    http::{ApiError, App, metrics},
    openapi,
};

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Master token or API key.
    Any,
    /// The master token alone; others get 403 with this text.
    Master(&'static str),
}

/// A route of the main router.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) handler: MethodRouter<App>,
}

macro_rules! access {
    () => {
        Access::Any
    };
    ($refusal:literal) => {
        Access::Master($refusal)
    };
}

macro_rules! routes {
    ($($method:ident $path:literal => $handler:path $(, master $refusal:literal)?;)*) => {
        vec![$(Route {
            method: Method::$method,
            path: $path,
            access: access!($($refusal)?),
            handler: on(MethodFilter::$method, $handler),
        },)*]
    };
}

/// The routes behind authentication.
pub(crate) fn table() -> Vec<Route> {
    routes! {
        GET    "/v1/environments"               => environment::list;
        POST   "/v1/environments"               => environment::create;
        GET    "/v1/environments/{vmId}"        => environment::get;
        POST   "/v1/environments/{vmId}"        => environment::act;
        DELETE "/v1/environments/{vmId}"        => environment::destroy;
        GET    "/v1/environments/{vmId}/events" => event::stream;
        GET    "/v1/events"                     => event::fleet, master "the fleet's events require the master token";
        GET    "/v1/environments/{vmId}/logs"   => logs::read;
        GET    "/v1/environments/{vmId}/attach" => attach::attach;
        POST   "/v1/environments/{vmId}/computer" => computer::act;
        GET    "/v1/environments/{vmId}/computer" => computer::display;
        GET    "/v1/environments/{vmId}/computer/stream" => computer::stream;
        POST   "/v1/environments/{vmId}/snapshots" => snapshot::create;
        GET    "/v1/snapshots"                  => snapshot::list;
        GET    "/v1/snapshots/resolve"          => snapshot::resolve;
        GET    "/v1/snapshots/{snapshotId}"     => snapshot::get;
        POST   "/v1/snapshots/{snapshotId}"     => snapshot::act;
        DELETE "/v1/snapshots/{snapshotId}"     => snapshot::delete;
        GET    "/v1/tasks/{id}"                 => task::get;
        GET    "/v1/tasks/{id}/logs"            => task::read_logs;
        GET    "/v1/hosts"                      => host::list;
        POST   "/v1/hosts"                      => host::register, master "host registration requires the master token";
        GET    "/v1/hosts/{hostId}"             => host::get;
        POST   "/v1/hosts/{hostId}"             => host::act, master "host mutations require the master token";
        DELETE "/v1/hosts/{hostId}"             => host::remove, master "host removal requires the master token";
        POST   "/v1/placement/explain"          => placement::explain;
        GET    "/v1/api-keys"                   => api_key::list, master "API key management requires the master token";
        POST   "/v1/api-keys"                   => api_key::create, master "API key management requires the master token";
        DELETE "/v1/api-keys/{id}"              => api_key::revoke, master "API key management requires the master token";
        GET    "/v1/audit"                      => audit::events, master "the audit log requires the master token";
        GET    "/v1/dead-letters"               => audit::dead_letters, master "dead letters require the master token";
    }
}

/// The routes that take no credential but are behind everything else.
pub(crate) fn public() -> Vec<Route> {
    routes! {
        POST "/login"  => session::login;
        POST "/logout" => session::logout;
    }
}

/// The probes and what describes the API, in front of everything.
pub(crate) fn outer() -> Vec<Route> {
    routes! {
        GET "/health"       => service::health;
        GET "/ready"        => service::ready;
        GET "/metrics"      => metrics::expose;
        GET "/v1/version"   => service::version;
        GET "/openapi.json" => openapi::serve;
    }
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
