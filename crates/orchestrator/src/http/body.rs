//! Request bodies: bounded in size and time, then decoded.

use std::time::Duration;

use axum::body::Body;
use fuse_wire_api::{MAX_BODY_LARGE, MAX_BODY_LOGIN, MAX_BODY_SMALL, decode};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use serde::de::DeserializeOwned;

use super::ApiError;

/// How long a body may take to arrive.
const DEADLINE: Duration = Duration::from_secs(15);

/// Size limit of a route's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Environments, commands.
    Large,
    /// A login.
    Login,
    /// Everything else.
    Small,
}

impl Limit {
    fn bytes(self) -> usize {
        match self {
            Self::Large => MAX_BODY_LARGE,
            Self::Login => MAX_BODY_LOGIN,
            Self::Small => MAX_BODY_SMALL,
        }
    }
}

/// A body that must be there.
///
/// # Errors
/// Too large, too slow, absent, or not the JSON that is expected.
pub(crate) async fn read_required<T: DeserializeOwned + Default>(
    body: Body,
    limit: Limit,
) -> Result<T, ApiError> {
    let bytes = read(body, limit).await?;
    if is_blank(&bytes) {
        return Err(ApiError::invalid("invalid JSON body: the body is empty"));
    }
    Ok(decode(&bytes)?)
}

/// A body that may be left out: then everything has its default.
///
/// # Errors
/// Too large, too slow, or not the JSON that is expected.
pub(crate) async fn read_optional<T: DeserializeOwned + Default>(
    body: Body,
    limit: Limit,
) -> Result<T, ApiError> {
    let bytes = read(body, limit).await?;
    if is_blank(&bytes) {
        return Ok(T::default());
    }
    Ok(decode(&bytes)?)
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

async fn read(body: Body, limit: Limit) -> Result<Vec<u8>, ApiError> {
    match tokio::time::timeout(DEADLINE, collect(body, limit.bytes())).await {
        Ok(outcome) => outcome,
        Err(_) => Err(ApiError::invalid(format!(
            "invalid JSON body: it did not arrive within {}s",
            DEADLINE.as_secs()
        ))),
    }
}

/// Counts what is read, so that a body without a declared length is bounded too.
async fn collect(mut body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let declared = body.size_hint().lower();
    if declared > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Err(ApiError::body_too_large(limit));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(declared).unwrap_or_default());
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| ApiError::invalid("invalid JSON body: the connection broke off"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.len() > limit - bytes.len() {
            return Err(ApiError::body_too_large(limit));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}
