//! `Idempotency-Key` on creates, forks and snapshots: reading it, and answering a repeat as the first time.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::Response,
};
use fuse_control::{Error, Once};
use fuse_model::{Environment, EnvironmentId};
use fuse_store::{IdempotentKey, StoredAnswer};
use fuse_wire_api::{CreateEnvironment, is_idempotency_key};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::{http::ApiError, views};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The key of a create, if it has one.
///
/// # Errors
/// The header is malformed, or there are several.
pub(super) fn key_of(
    headers: &HeaderMap,
    request: &CreateEnvironment,
) -> Result<Option<Once>, ApiError> {
    let key = header(headers)?;
    Ok(key.map(|key| Once {
        key: IdempotentKey {
            key,
            fingerprint: fingerprint(request),
        },
        wording,
    }))
}

/// The key of an action on an environment, if it has one.
///
/// # Errors
/// As [`key_of`].
pub(super) fn key_of_action(
    headers: &HeaderMap,
    action: &str,
    of: &EnvironmentId,
    request: &impl Serialize,
) -> Result<Option<IdempotentKey>, ApiError> {
    let key = header(headers)?;
    // Maps are sorted, and plain structs always serialise.
    let shown = (action, of, request);
    let fingerprint = || Sha256::digest(serde_json::to_vec(&shown).unwrap_or_default()).into();
    Ok(key.map(|key| IdempotentKey {
        key,
        fingerprint: fingerprint(),
    }))
}

fn header(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let key = value
        .to_str()
        .ok()
        .filter(|key| is_idempotency_key(key) && values.next().is_none())
        .ok_or_else(|| {
            ApiError::invalid(
                "Idempotency-Key must be one header of 1 to 255 visible ASCII characters",
            )
        })?;
    Ok(Some(key.to_owned()))
}

/// Digest of everything but the values of secrets, which are not to be guessed from
/// what is stored.
fn fingerprint(request: &CreateEnvironment) -> [u8; 32] {
    let mut shown = request.clone();
    shown.secrets.values_mut().for_each(String::clear);
    shown.gateway_token.clear();
    // Maps are sorted, and plain structs always serialise.
    Sha256::digest(serde_json::to_vec(&shown).unwrap_or_default()).into()
}

/// What is kept of a create's, or a fork's, answer.
pub(super) fn wording(outcome: &Result<Environment, Error>) -> StoredAnswer {
    match outcome {
        Ok(environment) => answer(
            StatusCode::CREATED,
            &views::environment(environment.clone()),
        ),
        Err(e) => ApiError::of(e).into_stored(),
    }
}

/// An answer in the form in which it is kept.
pub(super) fn answer(status: StatusCode, view: &impl Serialize) -> StoredAnswer {
    StoredAnswer {
        status: status.as_u16(),
        body: serde_json::to_string(view).unwrap_or_default(),
    }
}

/// An answer that was given before.
pub(super) fn replay(answer: StoredAnswer) -> Response {
    let mut response = respond(answer);
    let headers = response.headers_mut();
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// An answer that was worded to be kept.
pub(super) fn respond(answer: StoredAnswer) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: &str) -> CreateEnvironment {
        fuse_wire_api::decode(body.as_bytes()).unwrap()
    }

    fn read(values: &[&str]) -> Result<Option<Once>, ApiError> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, value.parse().unwrap());
        }
        key_of(&headers, &request(r#"{"task_id":"a"}"#))
    }

    #[test]
    fn keys() {
        assert!(read(&[]).unwrap().is_none());
        assert_eq!(read(&["a-1"]).unwrap().unwrap().key.key, "a-1");
        for bad in [&[""][..], &["a b"], &["a", "a"], &[&"a".repeat(256)]] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_request_is_known_by_what_it_asks_for() {
        let of = |body| fingerprint(&request(body));
        let one = of(r#"{"task_id":"a","secrets":{"K":"v"},"spec":{"cpus":1}}"#);
        // Order, defaults and space do not matter.
        assert_eq!(
            one,
            of(r#"{ "spec":{"cpus":1,"gpus":0}, "secrets":{"K":"w"}, "task_id":"a" }"#)
        );
        for other in [
            r#"{"task_id":"b","secrets":{"K":"v"},"spec":{"cpus":1}}"#,
            r#"{"task_id":"a","secrets":{"L":"v"},"spec":{"cpus":1}}"#,
            r#"{"task_id":"a","secrets":{"K":"v"},"spec":{"cpus":2}}"#,
        ] {
            assert_ne!(one, of(other), "{other}");
        }
    }
}
