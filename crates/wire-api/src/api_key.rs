//! `/v1/api-keys`: keys that let applications in.
//!
//! The raw key is in the answer to its creation and nowhere else.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Violation, json::null_default};

/// Longest label (characters).
const MAX_LABEL: usize = 256;

/// A right that a key has beyond those of every key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Run commands in guests.
    Exec,
    /// Open terminals in guests.
    Attach,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Exec, Self::Attach];

    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
        }
    }

    /// The scope of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == name)
    }
}

/// `POST /v1/api-keys`; every field is optional, and so is the body.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CreateApiKey {
    /// What it is for, in the caller's words.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub label: String,
    /// Names of [`Scope`]s.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub scopes: Vec<String>,
}

impl CreateApiKey {
    /// Checks the request. The scopes come back sorted and each once.
    ///
    /// # Errors
    /// The label is too long, or a scope is unknown.
    pub fn check(self) -> Result<(String, Vec<Scope>), Violation> {
        if self.label.chars().count() > MAX_LABEL {
            return Err(Violation::invalid(format!(
                "label must not be longer than {MAX_LABEL} characters"
            )));
        }
        let mut scopes = Vec::with_capacity(self.scopes.len());
        for name in &self.scopes {
            scopes.push(Scope::named(name).ok_or_else(|| {
                Violation::invalid(format!(
                    "scopes: unknown scope {name:?} (expected exec or attach)"
                ))
            })?);
        }
        scopes.sort_unstable();
        scopes.dedup();
        Ok((self.label, scopes))
    }
}

/// A key as it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiKey {
    /// `ak_` + 16 hex.
    pub id: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// Extra rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was used last, to the minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

/// The answer to a creation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedApiKey {
    /// Its metadata.
    #[serde(flatten)]
    pub metadata: ApiKey,
    /// The raw key: shown here only.
    pub key: String,
}

impl fmt::Debug for CreatedApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CreatedApiKey")
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

/// `GET /v1/api-keys`: live and revoked ones, newest first, all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApiKeyList {
    /// The keys.
    pub api_keys: Vec<ApiKey>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(label: &str, scopes: &[&str]) -> Result<(String, Vec<Scope>), Violation> {
        CreateApiKey {
            label: label.to_owned(),
            scopes: scopes.iter().map(|scope| (*scope).to_owned()).collect(),
        }
        .check()
    }

    #[test]
    fn scopes_are_a_closed_set() {
        assert_eq!(check("ci", &[]).unwrap(), ("ci".to_owned(), Vec::new()));
        let (_, scopes) = check("", &["attach", "exec", "attach"]).unwrap();
        assert_eq!(scopes, [Scope::Exec, Scope::Attach]);
        for bad in ["", "Exec", "hosts"] {
            let error = check("", &["exec", bad]).unwrap_err().to_string();
            assert!(error.starts_with("scopes: unknown scope "), "{error}");
        }
        assert!(check(&"ä".repeat(256), &[]).is_ok());
        assert!(check(&"a".repeat(257), &[]).is_err());
    }

    #[test]
    fn the_key_is_not_in_debug_output_and_unset_fields_are_absent() {
        let created = CreatedApiKey {
            metadata: ApiKey {
                id: "ak_0".to_owned(),
                label: String::new(),
                scopes: Vec::new(),
                created_at: Timestamp::UNIX_EPOCH,
                last_used_at: None,
                revoked_at: None,
            },
            key: "fuse_sk_secret".to_owned(),
        };
        assert!(!format!("{created:?}").contains("secret"));
        assert_eq!(
            serde_json::to_string(&created).unwrap(),
            r#"{"id":"ak_0","created_at":"1970-01-01T00:00:00Z","key":"fuse_sk_secret"}"#
        );
    }
}
