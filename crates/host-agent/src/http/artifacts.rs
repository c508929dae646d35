//! The handlers of artifacts.

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::http::response::Builder;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use fuse_wire_host::artifact::{BASE_GRANT_HEADER, BASE_HEADER, DIGEST_HEADER, GRANT_HEADER};
use fuse_wire_host::{Grant, Pull, PullRequest, text};
use futures_util::{StreamExt as _, stream};

use super::routes::Answer;
use super::{ApiError, App};
use crate::artifact::Served;

/// The routes, of agents that have snapshots.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/artifacts/{digest}", get(serve))
        .route("/v1/artifacts/{digest}/pull", post(pull))
        .route("/v1/artifacts/pulls/{id}", get(progress))
}

/// Whether a request is opened by a grant and not by the token.
pub(super) fn is_granted(method: &Method, path: &str) -> bool {
    let digest = path.strip_prefix("/v1/artifacts/");
    method == Method::GET && digest.is_some_and(|digest| !digest.contains('/'))
}

pub(super) async fn serve(
    State(app): State<App>,
    Path(digest): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let grant = headers
        .get(GRANT_HEADER)
        .and_then(|grant| grant.to_str().ok());
    let grant = grant.map(Grant::from_text);
    let range = headers.get(RANGE).and_then(|range| range.to_str().ok());
    let from = range.and_then(first_byte);
    let artifacts = app.registry.artifacts();
    let served = artifacts.serve(&digest, grant.as_ref(), from).await?;
    let Served {
        total,
        from: begin,
        base,
        mut chunks,
    } = served;
    let mut answer = Response::builder()
        .header(CONTENT_TYPE, "application/octet-stream")
        .header(CONTENT_LENGTH, total - begin)
        .header(ACCEPT_RANGES, "bytes")
        .header(DIGEST_HEADER, digest);
    if let Some((base, grant)) = base {
        answer = answer
            .header(BASE_HEADER, base)
            .header(BASE_GRANT_HEADER, grant.expose());
    }
    let chunks = stream::poll_fn(move |context| chunks.poll_recv(context));
    let body = Body::from_stream(chunks.map(|chunk| chunk.map(Bytes::from)));
    partial(answer, from, total)
        .body(body)
        .map_err(|error| ApiError::internal(&error))
}

fn partial(answer: Builder, from: Option<u64>, total: u64) -> Builder {
    match from {
        None => answer,
        Some(from) => {
            let range = format!("bytes {from}-{}/{total}", total - 1);
            answer
                .status(StatusCode::PARTIAL_CONTENT)
                .header(CONTENT_RANGE, range)
        }
    }
}

/// The start of `bytes=5-`. Every other range is answered with the whole.
fn first_byte(range: &str) -> Option<u64> {
    range
        .strip_prefix("bytes=")?
        .strip_suffix('-')?
        .parse()
        .ok()
}

pub(super) async fn pull(
    State(app): State<App>,
    Path(digest): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let request: PullRequest = app.read(&headers, body, app.config.http.body).await?;
    let is_async = request.is_async == Some(true);
    let pull = app.registry.artifacts().pull(&digest, request)?;
    if is_async {
        return Ok((StatusCode::ACCEPTED, Json(pull.view())).into_response());
    }
    Ok(Json(pull.ended().await?).into_response())
}

pub(super) async fn progress(State(app): State<App>, Path(id): Path<String>) -> Answer<Pull> {
    let pull = app.registry.artifacts().get(&id);
    let pull = pull.ok_or_else(|| ApiError::not_found(text::PULL_NOT_FOUND))?;
    Ok(Json(pull.view()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bytes_themselves_are_opened_by_a_grant() {
        assert!(is_granted(&Method::GET, "/v1/artifacts/abc"));
        for (method, path) in [
            (Method::POST, "/v1/artifacts/abc"),
            (Method::GET, "/v1/artifacts/pulls/abc"),
            (Method::POST, "/v1/artifacts/abc/pull"),
            (Method::GET, "/v1/vm"),
            (Method::GET, "/v1/artifacts"),
        ] {
            assert!(!is_granted(&method, path), "{method} {path}");
        }
    }

    #[test]
    fn ranges_to_the_end_are_understood_and_no_others() {
        assert_eq!(first_byte("bytes=0-"), Some(0));
        assert_eq!(first_byte("bytes=17-"), Some(17));
        for other in [
            "bytes=1-2",
            "bytes=-5",
            "bytes=1-,3-",
            "items=1-",
            "bytes=x-",
        ] {
            assert_eq!(first_byte(other), None, "{other}");
        }
    }
}
