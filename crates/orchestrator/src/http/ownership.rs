//! With `scope-keys-to-owner` an API key reaches only the environments, snapshots and
//! tasks that it made; those of others are answered like ones that do not exist.
//!
//! Here is the check of environments and snapshots by the id in a path. Lists are
//! filtered where they are read, and what a request names in its body is checked by the
//! use case.

use axum::{
    extract::{RawPathParams, Request, State, rejection::RawPathParamsRejection},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use fuse_model::{EnvironmentId, SnapshotId};

use super::{ApiError, App, Principal};

/// Whether a path has the id of an environment or a snapshot.
pub(super) fn is_of_one_thing(path: &str) -> bool {
    path.starts_with("/v1/environments/{vmId}") || path.starts_with("/v1/snapshots/{snapshotId}")
}

impl App {
    /// Whose things a caller is kept to; `None`: it reaches everything.
    pub(crate) fn kept_to(&self, principal: &Principal) -> Option<String> {
        let caller = principal.tenant();
        self.control.kept_to(&caller).map(str::to_owned)
    }
}

/// Middleware of every route of one environment or one snapshot.
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
    let id = |wanted| {
        let parameters = parameters.as_ref().ok()?;
        let (_, id) = parameters.iter().find(|(name, _)| *name == wanted)?;
        Some(id)
    };
    let known = match id("snapshotId") {
        Some(id) => {
            let id = SnapshotId::new(id);
            app.control.snapshot_for(&id, &owner).await.map(drop)
        }
        // An id that is no text is nobody's.
        None => {
            let id = EnvironmentId::new(id("vmId").unwrap_or_default());
            app.control.environment_for(&id, &owner).await.map(drop)
        }
    };
    match known {
        Ok(()) => next.run(request).await,
        Err(e) => ApiError::from(e).into_response(),
    }
}
