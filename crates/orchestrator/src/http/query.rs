//! Query strings: the first value of a key counts, as do only the keys asked for.

use axum::{extract::FromRequestParts, http::request::Parts};
use url::form_urlencoded;

/// The pairs of a query string, decoded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// The first value of `key`; absent and empty are the same.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(name, _)| name == key)?;
        (!value.is_empty()).then_some(value.as_str())
    }
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        let text = parts.uri.query().unwrap_or_default();
        Ok(Self(
            form_urlencoded::parse(text.as_bytes())
                .into_owned()
                .collect(),
        ))
    }
}
