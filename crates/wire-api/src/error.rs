//! Error envelope, stable codes, and the outcome of a failed validation.
//!
//! Every non-2xx answer of the main router is an [`ErrorEnvelope`]. Callers branch
//! on [`ErrorCode`] only; messages are for people.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr, Schema,
        schema::{ObjectBuilder, Type},
    },
};

/// Stable machine-readable reason of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The route exists, the resource does not (404).
    NotFound,
    /// No such route (404), or not with this method (405).
    RouteNotFound,
    /// A state precondition failed, a duplicate, a quota (409).
    Conflict,
    /// The request is malformed or breaks a rule (400).
    InvalidArgument,
    /// The body or the decoded files exceed the cap (413).
    PayloadTooLarge,
    /// Missing or wrong credentials (401), master only (403), an agent rejected its token (502).
    Unauthorized,
    /// The source address is not allowed (403).
    Forbidden,
    /// Placement failed, or something needed is away for the moment (503).
    Unavailable,
    /// Everything else (500, 502).
    Internal,
    /// The backend lacks the capability (501).
    Unimplemented,
    /// A code that this build does not know; only ever read, never sent.
    #[serde(other, skip_serializing)]
    Unrecognized,
}

impl ErrorCode {
    /// Every code that is sent.
    pub const ALL: [Self; 10] = [
        Self::NotFound,
        Self::RouteNotFound,
        Self::Conflict,
        Self::InvalidArgument,
        Self::PayloadTooLarge,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Unavailable,
        Self::Internal,
        Self::Unimplemented,
    ];

    /// The wire form of the code.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::RouteNotFound => "route_not_found",
            Self::Conflict => "conflict",
            Self::InvalidArgument => "invalid_argument",
            Self::PayloadTooLarge => "payload_too_large",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
            Self::Unimplemented => "unimplemented",
            Self::Unrecognized => "unrecognized",
        }
    }
}

/// Written out, because the code that is only read is none to document.
impl PartialSchema for ErrorCode {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(Self::ALL.map(Self::as_str)))
            .description(Some("Stable reason of a failed request."))
            .into()
    }
}

impl ToSchema for ErrorCode {}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The object under `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// Stable reason.
    pub code: ErrorCode,
    /// What went wrong and what to do, for a person.
    pub message: String,
    /// Additional facts, by name; absent when empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

/// Body of every non-2xx answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorEnvelope {
    /// The failure.
    pub error: ErrorBody,
}

/// A rule of the contract that a request breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Answered with 400 `invalid_argument`.
    #[error("{0}")]
    Invalid(String),
    /// Answered with 413 `payload_too_large`.
    #[error("{0}")]
    TooLarge(String),
}

impl Violation {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_absent_when_empty() {
        let body = ErrorEnvelope {
            error: ErrorBody {
                code: ErrorCode::NotFound,
                message: "vm a not found".into(),
                details: BTreeMap::new(),
            },
        };
        assert_eq!(
            serde_json::to_string(&body).unwrap(),
            r#"{"error":{"code":"not_found","message":"vm a not found"}}"#
        );
    }

    #[test]
    fn codes_read_and_write_the_same_text() {
        for code in ErrorCode::ALL {
            let text = serde_json::to_string(&code).unwrap();
            assert_eq!(text, format!("\"{code}\""));
            assert_eq!(serde_json::from_str::<ErrorCode>(&text).unwrap(), code);
        }
    }

    #[test]
    fn a_future_code_is_readable() {
        let code: ErrorCode = serde_json::from_str("\"teapot\"").unwrap();
        assert_eq!(code, ErrorCode::Unrecognized);
    }
}
