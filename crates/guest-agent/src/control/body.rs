//! Request bodies, held within the guest's memory.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_LENGTH;
use fuse_wire_guest::control::MAX_BODY_BYTES;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;

use super::Control;
use super::error::ApiError;

/// A JSON body. Holds its share of the memory for bodies until it is dropped.
#[derive(Debug)]
pub(super) struct JsonBody<T> {
    pub(super) value: T,
    pub(super) _share: OwnedSemaphorePermit,
}

impl<T: DeserializeOwned> FromRequest<Arc<Control>> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, control: &Arc<Control>) -> Result<Self, ApiError> {
        let length = declared_length(&request).unwrap_or(MAX_BODY_BYTES);
        if length > MAX_BODY_BYTES {
            return Err(ApiError::TooLarge);
        }
        let share = u32::try_from(length / 1024 + 1).unwrap_or(u32::MAX);
        let share = Arc::clone(&control.bodies)
            .acquire_many_owned(share)
            .await
            .map_err(|_| ApiError::GoingDown)?;
        let bytes = Bytes::from_request(request, control)
            .await
            .map_err(|rejection| {
                if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
                    ApiError::TooLarge
                } else {
                    ApiError::CutShort
                }
            })?;
        // The position is told, the content is not: bodies carry credentials.
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            ApiError::Body(match error.classify() {
                serde_json::error::Category::Data => format!(
                    "a field is missing or has the wrong type (line {}, column {})",
                    error.line(),
                    error.column()
                ),
                _ => format!(
                    "not JSON (line {}, column {})",
                    error.line(),
                    error.column()
                ),
            })
        })?;
        Ok(Self {
            value,
            _share: share,
        })
    }
}

fn declared_length(request: &Request) -> Option<usize> {
    request
        .headers()
        .get(CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}
