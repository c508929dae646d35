//! What can go wrong with a call, and what the server said about it.

use std::collections::BTreeMap;
use std::io;

use fuse_wire_api::{ErrorBody, ErrorCode};
use serde::Deserialize;

use crate::resolve::LookupFailed;

/// Outcome of a call that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server answered, with an error.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// No answer came back.
    #[error("could not reach {url}: {reason}")]
    Transport {
        /// Where the request went, without query.
        url: String,
        /// Why, in a word or two.
        reason: Reason,
    },
    /// The answer is a redirect, which is never followed: the token would travel with it.
    #[error("{url} answered with a redirect to {location}; connect to the final address instead")]
    Redirected {
        /// Where the request went.
        url: String,
        /// Where it was sent on to.
        location: String,
    },
    /// The answer is not what this call returns.
    #[error("{url} sent an answer that could not be understood: {reason}")]
    Decode {
        /// Where the request went.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The answer is larger than any this client expects.
    #[error("{url} sent more than {limit} bytes")]
    TooLarge {
        /// Where the request went.
        url: String,
        /// The bound.
        limit: usize,
    },
    /// The id cannot stand in an URL.
    #[error("{id:?} is not a valid id")]
    InvalidId {
        /// The id.
        id: String,
    },
    /// The token cannot stand in a header.
    #[error("the token contains characters that cannot be sent in a header (a line break?)")]
    InvalidToken,
    /// The HTTP client could not be set up.
    #[error("could not set up the HTTP client: {0}")]
    Setup(String),
}

impl Error {
    /// The server's error, if it answered with one.
    #[must_use]
    pub fn api(&self) -> Option<&ApiError> {
        match self {
            Self::Api(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the server said that the resource does not exist (the route does).
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.api()
            .is_some_and(|error| error.code == Some(ErrorCode::NotFound))
    }

    /// Whether trying again can help: nothing came back, or the server is in trouble.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Api(error) => matches!(error.status, 429 | 500 | 502..=504),
            Self::Transport { .. } => true,
            _ => false,
        }
    }
}

/// The error envelope of the API, with what came around it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Stable code; absent when the body is not the API's envelope.
    pub code: Option<ErrorCode>,
    /// The code as sent, for codes newer than this client.
    pub code_text: String,
    /// The server's words, or the status text without an envelope.
    pub message: String,
    /// Further facts, by name.
    pub details: BTreeMap<String, String>,
    /// `X-Request-ID` of the answer.
    pub request_id: Option<String>,
}

impl ApiError {
    /// Reads an error answer. A body that is not the envelope leaves the status text as message.
    pub(crate) fn read(
        status: reqwest::StatusCode,
        request_id: Option<String>,
        body: &[u8],
    ) -> Self {
        // Not the strict type: a code from a newer server must survive as text.
        #[derive(Deserialize)]
        struct Envelope {
            error: Body,
        }
        #[derive(Deserialize)]
        struct Body {
            code: String,
            #[serde(default)]
            message: String,
            #[serde(default)]
            details: BTreeMap<String, serde_json::Value>,
        }
        let status_text = || {
            let reason = status
                .canonical_reason()
                .unwrap_or("unknown status")
                .to_lowercase();
            format!("http {}: {reason}", status.as_u16())
        };
        let Ok(Envelope { error }) = serde_json::from_slice::<Envelope>(body) else {
            return Self {
                status: status.as_u16(),
                code: None,
                code_text: String::new(),
                message: status_text(),
                details: BTreeMap::new(),
                request_id,
            };
        };
        let text = |value: serde_json::Value| match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        Self {
            status: status.as_u16(),
            code: serde_json::from_value(serde_json::Value::String(error.code.clone())).ok(),
            code_text: error.code,
            message: if error.message.is_empty() {
                status_text()
            } else {
                error.message
            },
            details: error
                .details
                .into_iter()
                .map(|(key, value)| (key, text(value)))
                .collect(),
            request_id,
        }
    }

    /// The error that an answer ended with after it had begun well.
    pub(crate) fn of(error: ErrorBody) -> Self {
        Self {
            status: reqwest::StatusCode::OK.as_u16(),
            code: Some(error.code),
            code_text: error.code.to_string(),
            message: error.message,
            details: error.details,
            request_id: None,
        }
    }

    /// Whether the credentials were refused, by code or, from something in front of the API that
    /// does not speak its envelope, by status.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        self.code == Some(ErrorCode::Unauthorized) || self.status == 401
    }
}

/// Why nothing came back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Nothing listens there.
    #[error("connection refused")]
    Refused,
    /// The name does not resolve.
    #[error("host not found")]
    HostNotFound,
    /// No answer in time.
    #[error("timed out")]
    TimedOut,
    /// The network does not lead there.
    #[error("no route to host")]
    NoRoute,
    /// The connection broke while the answer was on its way.
    #[error("the connection was lost")]
    Lost,
    /// Anything else, in the words of the layer that failed.
    #[error("{0}")]
    Other(String),
}

impl Reason {
    /// Classifies by the types in the error's chain of sources.
    pub(crate) fn of(error: &reqwest::Error) -> Self {
        if error.is_timeout() {
            return Self::TimedOut;
        }
        let mut innermost = error.to_string();
        let mut next = std::error::Error::source(error);
        while let Some(cause) = next {
            if cause.is::<LookupFailed>() {
                return Self::HostNotFound;
            }
            if let Some(io) = cause.downcast_ref::<io::Error>() {
                match io.kind() {
                    io::ErrorKind::ConnectionRefused => return Self::Refused,
                    io::ErrorKind::TimedOut => return Self::TimedOut,
                    io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                        return Self::NoRoute;
                    }
                    io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof => return Self::Lost,
                    _ => {}
                }
            }
            innermost = cause.to_string();
            next = cause.source();
        }
        if error.is_body() || error.is_request() && !error.is_connect() {
            // hyper reports a peer that closes early by its own type, without an io error below.
            return Self::Lost;
        }
        Self::Other(innermost)
    }
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::*;

    #[test]
    fn an_envelope_is_read() {
        let body = br#"{"error":{"code":"conflict","message":"task already assigned","details":{"vm_id":"fuse-a","vm_count":2}}}"#;
        let error = ApiError::read(StatusCode::CONFLICT, Some("req_1".into()), body);
        assert_eq!(error.code, Some(ErrorCode::Conflict));
        assert_eq!(error.to_string(), "task already assigned");
        assert_eq!(error.details["vm_id"], "fuse-a");
        assert_eq!(error.details["vm_count"], "2");
        assert_eq!(error.request_id.as_deref(), Some("req_1"));
    }

    #[test]
    fn anything_else_falls_back_to_the_status() {
        for body in [
            "",
            "<html>",
            "{}",
            r#"{"error":"text"}"#,
            r#"{"error":{"message":"m"}}"#,
        ] {
            let error = ApiError::read(StatusCode::UNAUTHORIZED, None, body.as_bytes());
            assert_eq!((error.code, error.code_text.as_str()), (None, ""), "{body}");
            assert_eq!(error.message, "http 401: unauthorized");
            assert!(error.is_unauthorized());
        }
    }

    #[test]
    fn a_future_code_survives_as_text() {
        let body = br#"{"error":{"code":"teapot","message":"short and stout"}}"#;
        let error = ApiError::read(StatusCode::IM_A_TEAPOT, None, body);
        assert_eq!(error.code, Some(ErrorCode::Unrecognized));
        assert_eq!(error.code_text, "teapot");
    }
}
