//! Who a request comes from, as authentication found out. Handlers take it as an
//! argument.

use axum::{
    extract::{FromRequestParts, Request},
    http::request::Parts,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use fuse_model::ApiKeyId;
use fuse_wire_api::Scope;

use super::ApiError;

/// The caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Principal {
    /// The holder of the master token, or anybody in insecure mode.
    Master,
    /// The holder of an API key.
    Key {
        /// The key's id.
        id: ApiKeyId,
        /// Its extra rights.
        scopes: Vec<String>,
    },
}

impl Principal {
    /// Whose the things are that it makes: empty for the master, else the key's id.
    pub(crate) fn tenant(&self) -> String {
        match self {
            Self::Master => String::new(),
            Self::Key { id, .. } => id.to_string(),
        }
    }

    /// Lets the master through, and keys with this scope.
    ///
    /// # Errors
    /// 403 with `refusal`.
    pub(crate) fn require(&self, scope: Scope, refusal: &'static str) -> Result<(), ApiError> {
        match self {
            Self::Master => Ok(()),
            Self::Key { scopes, .. } if scopes.iter().any(|own| own == scope.as_str()) => Ok(()),
            Self::Key { .. } => Err(ApiError::master_only(refusal)),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Principal {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        // Every route that asks is behind authentication.
        parts
            .extensions
            .get()
            .cloned()
            .ok_or_else(ApiError::internal)
    }
}

/// Middleware of routes for the master alone: keys are refused before the body is read.
pub(super) async fn require_master(
    refusal: &'static str,
    principal: Principal,
    request: Request,
    next: Next,
) -> Response {
    match principal {
        Principal::Master => next.run(request).await,
        Principal::Key { .. } => ApiError::master_only(refusal).into_response(),
    }
}
