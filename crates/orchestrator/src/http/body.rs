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

/// A body that must be there and may take its time.
///
/// # Errors
/// Too large, absent, or not the JSON that is expected.
pub(crate) async fn read_unhurried<T: DeserializeOwned + Default>(
    body: Body,
    limit: usize,
    too_large: impl FnOnce() -> ApiError,
) -> Result<T, ApiError> {
    let bytes = match collect(body, limit).await {
        Err(e) if e.is_too_large() => return Err(too_large()),
        outcome => outcome?,
    };
    if is_blank(&bytes) {
        return Err(ApiError::invalid("invalid JSON body: the body is empty"));
    }
    Ok(decode(&bytes)?)
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

async fn read(body: Body, limit: Limit) -> Result<Vec<u8>, ApiError> {
    read_within(DEADLINE, body, limit.bytes()).await
}

async fn read_within(deadline: Duration, body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    match tokio::time::timeout(deadline, collect(body, limit)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(ApiError::invalid(format!(
            "invalid JSON body: it did not arrive within {deadline:?}"
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

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io};

    use bytes::Bytes;
    use futures_util::{StreamExt as _, stream};

    use super::*;

    const SHORT: Duration = Duration::from_millis(30);
    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_body_that_stalls_is_given_up_on() {
        let start = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{"))]);
        let body = Body::from_stream(start.chain(stream::pending()));
        let error = read_within(SHORT, body, 100).await.unwrap_err();
        let want = ApiError::invalid("invalid JSON body: it did not arrive within 30ms");
        assert_eq!(error, want);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_the_callers_fault() {
        let broken = stream::iter([
            Ok(Bytes::from_static(b"{\"task_id\":")),
            Err(io::Error::other("reset")),
        ]);
        let error = read_within(LONG, Body::from_stream(broken), 100).await;
        let want = ApiError::invalid("invalid JSON body: the connection broke off");
        assert_eq!(error.unwrap_err(), want);
    }

    #[tokio::test]
    async fn what_is_read_is_counted_to_the_byte() {
        let body = |sizes: &'static [usize]| {
            let chunks = sizes
                .iter()
                .map(|size| Ok::<_, Infallible>(Bytes::from(vec![b'x'; *size])));
            Body::from_stream(stream::iter(chunks))
        };
        let read = async |sizes| read_within(LONG, body(sizes), 10).await;
        assert_eq!(read(&[4, 0, 6]).await.unwrap().len(), 10);
        for over in [&[11][..], &[4, 7], &[10, 1], &[1 << 20]] {
            assert_eq!(read(over).await.unwrap_err(), ApiError::body_too_large(10));
        }
        // A declared length is refused before a byte is read.
        let declared = Body::from(vec![b'x'; 11]);
        let error = read_within(LONG, declared, 10).await.unwrap_err();
        assert_eq!(error, ApiError::body_too_large(10));
    }
}
