//! Reading a JSON body by the contract's rules: chunked is refused (411), a declared length above
//! the limit is refused before a byte is read (413), no body is `{}`, anything but an object is a
//! 400, and so are wrong types; the text names what is wrong.

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use std::time::Duration;

use super::ApiError;

/// Reads `body` as `T`.
pub(super) async fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    idle: Duration,
) -> Result<T, ApiError> {
    let bytes = read(headers, body, limit, idle).await?;
    let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    if text.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(ApiError::bad_request("the body must be a JSON object"));
    }
    serde_json::from_slice(text).map_err(|error| ApiError::bad_request(explain(&error)))
}

/// Serde's own words, less the position when it adds nothing.
fn explain(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Data => {
            let text = error.to_string();
            let end = text.rfind(" at line ").unwrap_or(text.len());
            text[..end].to_owned()
        }
        _ => format!("the body is not valid JSON: {error}"),
    }
}

async fn read(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    idle: Duration,
) -> Result<Vec<u8>, ApiError> {
    let chunked = headers.get_all(TRANSFER_ENCODING).iter().any(|value| {
        value
            .to_str()
            .is_ok_and(|value| value.to_ascii_lowercase().contains("chunked"))
    });
    if chunked {
        return Err(ApiError::length_required());
    }
    let declared: usize = match headers.get(CONTENT_LENGTH) {
        None => 0,
        Some(value) => {
            let length = value
                .to_str()
                .ok()
                .and_then(|value| value.trim().parse().ok());
            length.ok_or_else(|| ApiError::bad_request("Content-Length is not a number"))?
        }
    };
    if declared > limit {
        return Err(ApiError::too_large(limit));
    }
    let mut bytes = Vec::with_capacity(declared);
    while let Some(frame) = tokio::time::timeout(idle, body.frame())
        .await
        .map_err(|_| {
            ApiError::bad_request("the body stopped arriving before its declared length")
        })?
    {
        let frame = frame.map_err(|_| {
            ApiError::bad_request("the body is shorter than its declared Content-Length")
        })?;
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    if bytes.len() < declared {
        return Err(ApiError::bad_request(
            "the body is shorter than its declared Content-Length",
        ));
    }
    Ok(bytes)
}
