//! `POST /login`: trades the master token for a session cookie.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::json::null_default;

/// Name of the session cookie.
pub const SESSION_COOKIE: &str = "fuse_session";

/// `POST /login`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Login {
    /// The master token.
    #[serde(deserialize_with = "null_default")]
    #[schema(required = true)]
    pub token: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_not_in_debug_output() {
        let login: Login = crate::decode(br#"{"token":"secret"}"#).unwrap();
        assert_eq!(login.token, "secret");
        assert!(!format!("{login:?}").contains("secret"));
    }
}
