//! Who is let in: the master token by `Authorization: Bearer`.

use axum::{
    extract::{Request, State},
    http::{HeaderValue, header::AUTHORIZATION},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use fuse_model::{AuditEntry, AuditKind};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{ApiError, App, layers::RequestId};
use crate::server::Peer;

/// The rule in force.
#[derive(Clone, PartialEq, Eq)]
pub enum Auth {
    /// Only the master token, of which the digest is kept.
    Master([u8; 32]),
    /// No token is configured, and the store would keep API keys: nobody gets in.
    Closed,
    /// No token is configured and nothing is durable: everybody is trusted.
    Insecure,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Master(_) => "Master",
            Self::Closed => "Closed",
            Self::Insecure => "Insecure",
        })
    }
}

impl Auth {
    /// Lets in who has this token.
    #[must_use]
    pub fn master(token: &str) -> Self {
        Self::Master(digest(token.as_bytes()))
    }

    fn admits(&self, authorization: Option<&[u8]>) -> Result<(), ApiError> {
        if matches!(self, Self::Insecure) {
            return Ok(());
        }
        let token = authorization
            .and_then(|value| value.strip_prefix(b"Bearer "))
            .filter(|token| !token.is_empty())
            .ok_or_else(|| ApiError::unauthorized("missing or malformed credentials"))?;
        let Self::Master(master) = self else {
            return Err(ApiError::unauthorized("invalid token"));
        };
        // Digests have one length, so the time of the comparison tells nothing.
        if bool::from(digest(token).ct_eq(master)) {
            Ok(())
        } else {
            Err(ApiError::unauthorized("invalid token"))
        }
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Middleware of every route of the table.
pub(super) async fn authenticate(State(app): State<App>, request: Request, next: Next) -> Response {
    let header = request
        .headers()
        .get(AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    match app.auth.admits(header) {
        Ok(()) => next.run(request).await,
        Err(refused) => {
            app.control.audit(failure(&request));
            refused.into_response()
        }
    }
}

fn failure(request: &Request) -> AuditEntry {
    let peer = request
        .extensions()
        .get::<Peer>()
        .map(|Peer(peer)| peer.to_string());
    let id = request
        .extensions()
        .get::<RequestId>()
        .map(|id| id.0.clone());
    AuditEntry::new(AuditKind::AuthFailed, peer.unwrap_or_default())
        .with("method", request.method().as_str())
        .with("path", request.uri().path())
        .with("request_id", id.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(auth: &Auth, header: Option<&str>) -> Option<String> {
        auth.admits(header.map(str::as_bytes))
            .err()
            .map(|e| e.message().to_owned())
    }

    #[test]
    fn credentials() {
        let master = Auth::master("t0ken");
        let (missing, invalid) = ("missing or malformed credentials", "invalid token");
        for (header, want) in [
            (Some("Bearer t0ken"), None),
            (None, Some(missing)),
            (Some(""), Some(missing)),
            (Some("Bearer "), Some(missing)),
            (Some("bearer t0ken"), Some(missing)),
            (Some("Basic t0ken"), Some(missing)),
            (Some("Bearer t0ke"), Some(invalid)),
            (Some("Bearer t0ken "), Some(invalid)),
            (Some("Bearer  t0ken"), Some(invalid)),
        ] {
            assert_eq!(refusal(&master, header).as_deref(), want, "{header:?}");
        }
        assert_eq!(refusal(&Auth::Closed, None).as_deref(), Some(missing));
        assert_eq!(
            refusal(&Auth::Closed, Some("Bearer x")).as_deref(),
            Some(invalid)
        );
        assert_eq!(refusal(&Auth::Insecure, None), None);
        assert!(!format!("{master:?}").contains("t0ken"));
    }
}
