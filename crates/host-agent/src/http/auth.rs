//! The bearer token, asked for on every route, before the route is even looked up. One is opened by a
//! grant instead: it is called by other agents, which have tokens of their own.

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{ApiError, App, artifacts};

pub(super) async fn require_token(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Response {
    let is_granted = artifacts::is_granted(request.method(), request.uri().path());
    if is_granted && app.serves_artifacts() {
        return next.run(request).await;
    }
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .map_or(&b""[..], |value| value.as_bytes());
    if matches(given, app.config.token.expose()) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
    }
}

/// Compares the whole header value in constant time. Digests are compared, so that not even the
/// token's length shows.
fn matches(header: &[u8], token: &str) -> bool {
    let wanted = Sha256::new()
        .chain_update(b"Bearer ")
        .chain_update(token)
        .finalize();
    Sha256::digest(header)
        .as_slice()
        .ct_eq(wanted.as_slice())
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_header_opens() {
        assert!(matches(b"Bearer t0ken", "t0ken"));
        for header in [
            &b""[..],
            b"t0ken",
            b"bearer t0ken",
            b"Bearer t0ken ",
            b"Bearer t0ke",
        ] {
            assert!(
                !matches(header, "t0ken"),
                "{}",
                String::from_utf8_lossy(header)
            );
        }
    }
}
