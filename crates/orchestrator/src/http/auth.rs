//! Who is let in: the master token or an API key as `Authorization: Bearer`, or the
//! session cookie of a browser.
//!
//! The header alone decides when it is there. Without a master token and without a
//! durable store, which would hold API keys, everybody is trusted.

use axum::{
    extract::{Request, State},
    http::{Extensions, HeaderMap, header::AUTHORIZATION, request::Parts},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use fuse_control::Control;
use fuse_model::{AuditEntry, AuditKind};

use super::{
    ApiError, App,
    layers::RequestId,
    principal::Principal,
    session::{MasterToken, session_cookie},
};
use crate::server::Peer;

/// The rule in force.
#[derive(Clone)]
pub struct Auth {
    master: Option<MasterToken>,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth")
            .field("has_master", &self.master.is_some())
            .finish()
    }
}

/// What a request came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credential<'a> {
    Bearer(&'a [u8]),
    Session(&'a str),
}

impl Auth {
    /// Lets in who has this token.
    #[must_use]
    pub fn master(token: &str) -> Self {
        Self {
            master: Some(MasterToken::new(token)),
        }
    }

    /// There is no master token.
    #[must_use]
    pub fn without_master() -> Self {
        Self { master: None }
    }

    /// Checks a login. `Ok(None)`: nothing to log in to, everybody is trusted.
    ///
    /// # Errors
    /// There is no master token, but a store with keys.
    pub(crate) fn login(&self, control: &Control) -> Result<Option<&MasterToken>, ApiError> {
        match &self.master {
            Some(master) => Ok(Some(master)),
            None if has_keys(control) => Err(ApiError::unauthorized(
                "login needs the master token and none is configured: set ORCH_AUTH_TOKEN",
            )),
            None => Ok(None),
        }
    }

    async fn admit(&self, control: &Control, headers: &HeaderMap) -> Result<Principal, ApiError> {
        let has_keys = has_keys(control);
        if self.master.is_none() && !has_keys {
            return Ok(Principal::Master);
        }
        let credential = credential(headers)
            .ok_or_else(|| ApiError::unauthorized("missing or malformed credentials"))?;
        if self.is_master(credential) {
            return Ok(Principal::Master);
        }
        if has_keys
            && let Credential::Bearer(token) = credential
            && let Ok(raw) = std::str::from_utf8(token)
            && let Some(key) = control.api_key_authenticate(raw).await.map_err(|e| {
                tracing::error!(error = %fuse_daemon::log::chain(&e), "cannot look up an API key");
                ApiError::keys_unavailable()
            })?
        {
            return Ok(Principal::Key {
                id: key.id,
                scopes: key.scopes,
            });
        }
        Err(ApiError::unauthorized("invalid token"))
    }

    fn is_master(&self, credential: Credential<'_>) -> bool {
        let Some(master) = &self.master else {
            return false;
        };
        match credential {
            Credential::Bearer(token) => master.is(token),
            Credential::Session(cookie) => master.admits_session(cookie),
        }
    }
}

/// API keys exist where the store outlives the process.
pub(super) fn has_keys(control: &Control) -> bool {
    control.store().engine().is_durable()
}

fn credential(headers: &HeaderMap) -> Option<Credential<'_>> {
    match headers.get(AUTHORIZATION) {
        Some(value) => value
            .as_bytes()
            .strip_prefix(b"Bearer ")
            .filter(|token| !token.is_empty())
            .map(Credential::Bearer),
        None => session_cookie(headers).map(Credential::Session),
    }
}

/// Middleware of every route of the table.
pub(super) async fn authenticate(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Response {
    match app.auth.admit(&app.control, request.headers()).await {
        Ok(principal) => {
            request.extensions_mut().insert(principal);
            next.run(request).await
        }
        Err(refused) => {
            if refused.is_unauthorized() {
                let (parts, _body) = request.into_parts();
                note_failure(&app, &parts);
            }
            refused.into_response()
        }
    }
}

/// Writes that a credential was refused.
pub(crate) fn note_failure(app: &App, parts: &Parts) {
    app.control.audit(refusal(AuditKind::AuthFailed, parts));
}

/// The audit entry of a request that was refused.
pub(super) fn refusal(kind: AuditKind, parts: &Parts) -> AuditEntry {
    AuditEntry::new(kind, peer(&parts.extensions))
        .with("method", parts.method.as_str())
        .with("path", parts.uri.path())
        .with("request_id", request_id(&parts.extensions))
}

fn peer(extensions: &Extensions) -> String {
    extensions
        .get::<Peer>()
        .map(Peer::to_string)
        .unwrap_or_default()
}

fn request_id(extensions: &Extensions) -> String {
    extensions
        .get::<RequestId>()
        .map(|id| id.0.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use axum::http::header::COOKIE;

    use super::*;

    fn is_master(authorization: Option<&str>, cookie: Option<&str>) -> Option<bool> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value.parse().unwrap());
        }
        if let Some(value) = cookie {
            headers.insert(COOKIE, value.parse().unwrap());
        }
        let auth = Auth::master("t0ken");
        credential(&headers).map(|credential| auth.is_master(credential))
    }

    #[test]
    fn bearer_tokens() {
        for (header, want) in [
            (Some("Bearer t0ken"), Some(true)),
            (None, None),
            (Some(""), None),
            (Some("Bearer "), None),
            (Some("bearer t0ken"), None),
            (Some("Basic t0ken"), None),
            (Some("Bearer t0ke"), Some(false)),
            (Some("Bearer t0ken "), Some(false)),
            (Some("Bearer  t0ken"), Some(false)),
        ] {
            assert_eq!(is_master(header, None), want, "{header:?}");
        }
    }

    #[test]
    fn a_header_decides_alone_even_a_malformed_one() {
        let cookie = format!("fuse_session={}", MasterToken::new("t0ken").open_session());
        assert_eq!(is_master(None, Some(&cookie)), Some(true));
        assert_eq!(is_master(Some("Bearer wrong"), Some(&cookie)), Some(false));
        assert_eq!(is_master(Some("nonsense"), Some(&cookie)), None);
        assert_eq!(is_master(None, Some("fuse_session=")), None);
        assert_eq!(is_master(None, Some("fuse_session=x")), Some(false));
    }

    #[test]
    fn the_token_is_not_in_debug_output() {
        assert!(!format!("{:?}", Auth::master("t0ken")).contains("t0ken"));
    }
}
