//! With `scope-keys-to-owner` an API key reaches only the environments that it made;
//! those of others are answered like ones that do not exist.

use axum::{
    extract::{RawPathParams, Request, State, rejection::RawPathParamsRejection},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use fuse_model::EnvironmentId;

use super::{ApiError, App, Principal};

/// Where the id of an environment is in a path.
pub(super) const ENVIRONMENT: &str = "/v1/environments/{vmId}";

impl App {
    /// Whose things a caller is kept to; `None`: it reaches everything.
    pub(crate) fn kept_to(&self, principal: &Principal) -> Option<String> {
        match principal {
            Principal::Key { id, .. } if self.control.settings().scope_keys_to_owner => {
                Some(id.to_string())
            }
            Principal::Key { .. } | Principal::Master => None,
        }
    }
}

/// Middleware of every route of one environment.
pub(super) async fn admit_owner(
    State(app): State<App>,
    principal: Principal,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let Some(owner) = app.kept_to(&principal) else {
        return next.run(request).await;
    };
    // An id that is no text is nobody's.
    let id = parameters.as_ref().ok().and_then(|parameters| {
        let (_, id) = parameters.iter().find(|(name, _)| *name == "vmId")?;
        Some(id)
    });
    let id = EnvironmentId::new(id.unwrap_or_default());
    match app.control.environment_of(&id, &owner).await {
        Ok(_) => next.run(request).await,
        Err(e) => ApiError::from(e).into_response(),
    }
}
