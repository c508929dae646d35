//! The one place where failures become a status and a stable code.
#![deny(clippy::wildcard_enum_match_arm)]

use std::{collections::BTreeMap, time::Duration};

use axum::{
    Json,
    http::{HeaderValue, Method, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use fuse_control::{Error, RegisterError, chain, of_the_store};
use fuse_model::ErrorKind;
use fuse_store::StoredAnswer;
use fuse_wire_api::{DecodeError, ErrorBody, ErrorCode, ErrorEnvelope, Violation};

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    body: ErrorBody,
    /// Seconds after which another try makes sense.
    retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        let body = ErrorBody {
            code,
            message: message.into(),
            details: BTreeMap::new(),
        };
        Self {
            status,
            body,
            retry_after: None,
        }
    }

    /// 400 `invalid_argument`.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument, message)
    }

    /// 401.
    pub(crate) fn unauthorized(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthorized, message)
    }

    /// 403 for what an API key may not do.
    pub(crate) fn master_only(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorCode::Unauthorized, message)
    }

    /// 429 for a login after too many failed ones.
    pub(crate) fn too_many_logins(wait: Duration) -> Self {
        let seconds = wait.as_secs() + 1;
        let mut error = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            ErrorCode::Unauthorized,
            format!("too many failed logins from this address, try again in {seconds}s"),
        );
        error.retry_after = Some(seconds);
        error
    }

    /// 503: the store that knows the API keys does not answer.
    pub(crate) fn keys_unavailable() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::Unavailable,
            "API keys cannot be checked: the state store does not answer, try again in a moment",
        )
    }

    /// 404 for `/v1/api-keys` without a store that would keep them.
    pub(crate) fn keys_disabled() -> Self {
        let mut error = Self::new(
            StatusCode::NOT_FOUND,
            ErrorCode::RouteNotFound,
            "API keys need a durable store: set DATABASE_URL to postgres://… or sqlite://…",
        );
        error
            .body
            .details
            .insert("reason".to_owned(), "api_keys_disabled".to_owned());
        error
    }

    /// 403 for a source address.
    pub(crate) fn forbidden(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, message)
    }

    /// 404 `not_found`, for ids that cannot exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, message)
    }

    /// 413 for a body.
    pub(crate) fn body_too_large(limit: usize) -> Self {
        Self::too_large(format!(
            "request body exceeds the {limit} byte limit for this endpoint"
        ))
    }

    /// 413 with words of its own.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            ErrorCode::PayloadTooLarge,
            message,
        )
    }

    /// 404 for a path.
    pub(crate) fn route_not_found(method: &Method, path: &str) -> Self {
        let message = format!("no such route: {method} {path}");
        Self::new(StatusCode::NOT_FOUND, ErrorCode::RouteNotFound, message)
    }

    /// 405 for a path that exists.
    pub(crate) fn method_not_allowed(method: &Method, path: &str) -> Self {
        let message = format!("no such route: {method} {path}");
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            ErrorCode::RouteNotFound,
            message,
        )
    }

    /// 400 for `?action=`.
    pub(crate) fn unknown_action() -> Self {
        Self::invalid("missing or unknown action query parameter")
    }

    /// 500 without anything of the inside.
    pub(crate) fn internal() -> Self {
        let message =
            "internal error; the reason is in the orchestrator's log, under this X-Request-ID";
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            ErrorCode::Internal,
            message,
        )
    }

    /// Whether it is about a size.
    pub(crate) fn is_too_large(&self) -> bool {
        self.status == StatusCode::PAYLOAD_TOO_LARGE
    }

    /// Whether the credential was refused, as opposed to not checked.
    pub(crate) fn is_unauthorized(&self) -> bool {
        self.status == StatusCode::UNAUTHORIZED
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(ErrorEnvelope { error: self.body })).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<Violation> for ApiError {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Invalid(message) => Self::invalid(message),
            Violation::TooLarge(message) => Self::too_large(message),
        }
    }
}

impl From<DecodeError> for ApiError {
    fn from(e: DecodeError) -> Self {
        Self::invalid(format!("invalid JSON body: {e}"))
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        if matches!(error.kind(), ErrorKind::Internal | ErrorKind::Unavailable) {
            tracing::error!(error = %chain(&error), "request failed");
        }
        Self::of(&error)
    }
}

impl ApiError {
    /// What the caller is told of a failed use case.
    pub(crate) fn of(error: &Error) -> Self {
        let (status, code) = status_and_code(error);
        if let Error::Store(e) = error {
            return if e.kind() == ErrorKind::Internal {
                Self::internal()
            } else {
                Self::new(status, code, of_the_store(e))
            };
        }
        let mut answer = Self::new(status, code, error.to_string());
        answer.body.details = error.details();
        answer
    }

    /// What is told within an answer that has begun.
    pub(crate) fn into_body(self) -> ErrorBody {
        self.body
    }

    /// The answer in the form in which it is kept for repeats.
    pub(crate) fn into_stored(self) -> StoredAnswer {
        StoredAnswer {
            status: self.status.as_u16(),
            // Plain structs always serialise.
            body: serde_json::to_string(&ErrorEnvelope { error: self.body }).unwrap_or_default(),
        }
    }
}

fn status_and_code(error: &Error) -> (StatusCode, ErrorCode) {
    // An agent is another server: its refusals are bad gateways.
    if let Error::Register(refused) = error {
        match refused {
            RegisterError::ProbeFailed(_) | RegisterError::NotProbed(_) => {
                return (StatusCode::BAD_GATEWAY, ErrorCode::Internal);
            }
            RegisterError::TokenRejected { .. }
            | RegisterError::Url(_)
            | RegisterError::Arch(_)
            | RegisterError::NotPositive { .. }
            | RegisterError::Generation(_)
            | RegisterError::BackendInUse { .. } => {}
        }
    }
    match error.kind() {
        ErrorKind::NotFound => (StatusCode::NOT_FOUND, ErrorCode::NotFound),
        ErrorKind::Conflict => (StatusCode::CONFLICT, ErrorCode::Conflict),
        ErrorKind::Invalid => (StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument),
        ErrorKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::PayloadTooLarge),
        // The caller was let in: it is a host agent that refuses the control plane.
        ErrorKind::Unauthenticated => (StatusCode::BAD_GATEWAY, ErrorCode::Unauthorized),
        ErrorKind::Forbidden => (StatusCode::FORBIDDEN, ErrorCode::Unauthorized),
        ErrorKind::NoCapacity | ErrorKind::Unavailable => {
            (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable)
        }
        ErrorKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, ErrorCode::Unimplemented),
        ErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal),
    }
}
