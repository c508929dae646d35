//! Failures of the control API as answers.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use fuse_wire_guest::control::{ErrorBody, MAX_BODY_BYTES};
use thiserror::Error;

use crate::clock::ClockError;
use crate::exec::ExecError;
use crate::files::FileError;
use crate::freeze::FreezeError;
use crate::surface::supervise::SurfaceError;

/// Why a request has no result.
#[derive(Debug, Error)]
pub(super) enum ApiError {
    /// The body is not what the route takes.
    #[error("the request body is not valid: {0}")]
    Body(String),
    /// The body is too large for the guest to hold.
    #[error(
        "the request body is larger than {MAX_BODY_BYTES} bytes; stream large files one by one"
    )]
    TooLarge,
    /// The body ended early.
    #[error("the request body ended early")]
    CutShort,
    /// The query does not name a file.
    #[error("the query must hold path=, and may hold mode=")]
    Query,
    /// The connection is not to be handed over as it should.
    #[error("the route is for an upgrade to {}", fuse_wire_attach::PROTOCOL)]
    NoUpgrade,
    /// The query does not describe a command.
    #[error(transparent)]
    Attach(#[from] fuse_wire_attach::RequestError),
    /// The route takes another method.
    #[error("the route does not take this method")]
    Method,
    /// No such route.
    #[error("the guest agent has no such route")]
    NotFound,
    /// The guest did not come up as it should.
    #[error("the guest is not usable: {0}")]
    Unusable(String),
    /// The guest is going down already.
    #[error("the guest is going down")]
    GoingDown,
    /// A blocking task was lost.
    #[error("the guest agent failed internally: {0}")]
    Internal(String),
    /// See [`ExecError`].
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// See [`FileError`].
    #[error(transparent)]
    File(#[from] FileError),
    /// See [`ClockError`].
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// See [`FreezeError`].
    #[error(transparent)]
    Freeze(#[from] FreezeError),
    /// The seed is not one, or the kernel does not take it.
    #[error("the seed is not taken")]
    Seed(#[source] std::io::Error),
    /// See [`SurfaceError`].
    #[error(transparent)]
    Surface(#[from] SurfaceError),
}

impl ApiError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Body(_)
            | Self::CutShort
            | Self::Query
            | Self::NoUpgrade
            | Self::Attach(_)
            | Self::Exec(ExecError::Invalid(_))
            | Self::File(FileError::Path { .. } | FileError::Mode(_))
            | Self::Clock(ClockError::Invalid(_))
            | Self::Surface(SurfaceError::Invalid(_)) => StatusCode::BAD_REQUEST,
            Self::Freeze(FreezeError::Frozen) => StatusCode::CONFLICT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unusable(_)
            | Self::GoingDown
            | Self::Exec(ExecError::Busy | ExecError::BusyAttached | ExecError::Start(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::File(FileError::NoSpace(_)) => StatusCode::INSUFFICIENT_STORAGE,
            Self::File(FileError::Obstacle { .. })
            | Self::Surface(
                SurfaceError::Start { .. }
                | SurfaceError::Died { .. }
                | SurfaceError::Silent { .. },
            ) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Clock(ClockError::Refused(_))
            | Self::Freeze(FreezeError::Hidden | FreezeError::Refused(..))
            | Self::Seed(_)
            | Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut error = self.to_string();
        let mut source = std::error::Error::source(&self);
        while let Some(cause) = source {
            error = format!("{error}: {cause}");
            source = cause.source();
        }
        (self.status(), Json(ErrorBody { error })).into_response()
    }
}
