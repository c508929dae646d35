//! Grants: what opens one artifact on one host for a while.
//!
//! ```text
//! grant = "v1" "." digest "." expiry_unix "." nonce "." mac
//! mac   = hex(HMAC-SHA256(token of the serving agent,
//!             "fuse-artifact-grant/v1" LF digest LF expiry_unix LF nonce))
//! ```
//!
//! The control plane mints them with the serving host's token, which so never reaches the fetching
//! host. The expiry bounds when a transfer may begin, not how long it takes; a grant may be used
//! again until then. A refusal never says which check failed.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit as _, Mac as _};
use rand::Rng as _;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use thiserror::Error;

use crate::artifact::{is_digest, is_hex};
use crate::token::AgentToken;

/// How long a transfer may wait before it begins.
pub const GRANT_TTL: Duration = Duration::from_secs(300);
/// Longest grant in bytes.
const MAX_LEN: usize = 512;
const VERSION: &str = "v1";
const CONTEXT: &str = "fuse-artifact-grant/v1";

/// A grant as it travels. `Debug` hides it: whoever reads one may use it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Grant(String);

/// A grant cannot be minted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MintError {
    /// An agent without a token has nothing to sign with.
    #[error("the serving agent has no token to sign a grant with")]
    NoToken,
    /// There is nothing of that name.
    #[error("not a digest")]
    NotADigest,
}

/// A grant was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("forbidden")]
pub struct Refused;

/// What a grant with a valid signature says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// Distinguishes it from every other grant.
    pub nonce: String,
    /// Until when a transfer may begin, in seconds since 1970.
    pub expiry: u64,
}

impl Claims {
    /// Whether a transfer may begin now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        unix_now() < self.expiry
    }
}

impl Grant {
    /// What was received as one.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Its text, for the one header that carries it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Mints one for the agent that `token` opens.
    ///
    /// # Errors
    /// There is no token, or `digest` is none.
    pub fn mint(token: &AgentToken, digest: &str, ttl: Duration) -> Result<Self, MintError> {
        if token.is_empty() {
            return Err(MintError::NoToken);
        }
        if !is_digest(digest) {
            return Err(MintError::NotADigest);
        }
        let mut nonce = [0u8; 16];
        rand::rng().fill_bytes(&mut nonce);
        let expiry = unix_now().saturating_add(ttl.as_secs()).to_string();
        Ok(Self::sign(token, digest, &expiry, &hex::encode(nonce)))
    }

    fn sign(token: &AgentToken, digest: &str, expiry: &str, nonce: &str) -> Self {
        let mac = mac(token, digest, expiry, nonce);
        Self(format!("{VERSION}.{digest}.{expiry}.{nonce}.{mac}"))
    }

    /// Checks everything but the time: shape, that it is for `digest`, and the signature.
    ///
    /// # Errors
    /// Something is wrong; it is not said what.
    pub fn verify(&self, token: &AgentToken, digest: &str) -> Result<Claims, Refused> {
        if token.is_empty() || self.0.len() > MAX_LEN {
            return Err(Refused);
        }
        let fields: Vec<&str> = self.0.split('.').collect();
        let [version, granted, expiry, nonce, given] = fields.as_slice() else {
            return Err(Refused);
        };
        let is_for_it = granted.as_bytes().ct_eq(digest.as_bytes());
        if *version != VERSION || !bool::from(is_for_it) || !is_digest(granted) {
            return Err(Refused);
        }
        let is_nonce = (16..=64).contains(&nonce.len()) && nonce.bytes().all(is_hex);
        let is_number = expiry.bytes().all(|byte| byte.is_ascii_digit());
        let until: u64 = expiry.parse().map_err(|_| Refused)?;
        let wanted = mac(token, granted, expiry, nonce);
        if !is_nonce || !is_number || !bool::from(given.as_bytes().ct_eq(wanted.as_bytes())) {
            return Err(Refused);
        }
        Ok(Claims {
            nonce: (*nonce).to_owned(),
            expiry: until,
        })
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grant(redacted)")
    }
}

fn mac(token: &AgentToken, digest: &str, expiry: &str, nonce: &str) -> String {
    // A key of any length will do; the error is for other algorithms.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(token.expose().as_bytes()) else {
        return String::new();
    };
    mac.update(format!("{CONTEXT}\n{digest}\n{expiry}\n{nonce}").as_bytes());
    hex::encode(mac.finalize().into_bytes())
}

fn unix_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(text: &str) -> AgentToken {
        AgentToken::new(text)
    }

    fn digest() -> String {
        "ab".repeat(32)
    }

    #[test]
    fn the_bytes_are_those_of_the_contract() {
        // From `printf '...' | openssl dgst -sha256 -hmac t0ken`.
        let grant = Grant::sign(&token("t0ken"), &digest(), "1700000000", &"0".repeat(32));
        let mac = "f64c70dd3f6476821f1c3c1cc8211c5bdb14d3f36b9439f7eedc7edd8f195eb5";
        let zeros = "0".repeat(32);
        assert_eq!(
            grant.expose(),
            format!("v1.{}.1700000000.{zeros}.{mac}", digest())
        );
    }

    #[test]
    fn a_grant_opens_its_artifact_on_its_host_for_a_while() {
        let grant = Grant::mint(&token("a"), &digest(), GRANT_TTL).unwrap();
        let claims = grant.verify(&token("a"), &digest()).unwrap();
        assert!(claims.is_open());
        assert_eq!(
            grant.verify(&token("b"), &digest()),
            Err(Refused),
            "another host"
        );
        let other = "cd".repeat(32);
        assert_eq!(
            grant.verify(&token("a"), &other),
            Err(Refused),
            "another artifact"
        );
        let late = Grant::mint(&token("a"), &digest(), Duration::ZERO).unwrap();
        assert!(!late.verify(&token("a"), &digest()).unwrap().is_open());
    }

    #[test]
    fn without_a_token_nothing_is_minted_or_opened() {
        let none = token("");
        let minted = Grant::mint(&none, &digest(), GRANT_TTL);
        assert_eq!(minted, Err(MintError::NoToken));
        let signed = Grant::sign(&none, &digest(), "9999999999", &"0".repeat(32));
        assert_eq!(signed.verify(&none, &digest()), Err(Refused));
        let minted = Grant::mint(&token("a"), "../x", GRANT_TTL);
        assert_eq!(minted, Err(MintError::NotADigest));
    }

    #[test]
    fn a_valid_signature_over_bad_fields_is_refused() {
        let token = token("a");
        let nonce = "0".repeat(32);
        for (expiry, nonce) in [
            ("+9999999999", nonce.as_str()),
            ("", &nonce),
            ("-1", &nonce),
            ("99999999999999999999999", &nonce),
            ("9999999999", "0123456789abcde"),
            ("9999999999", &"0".repeat(65)),
            ("9999999999", &"G".repeat(32)),
        ] {
            let signed = Grant::sign(&token, &digest(), expiry, nonce);
            assert_eq!(
                signed.verify(&token, &digest()),
                Err(Refused),
                "{expiry} {nonce}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_changed_byte_is_accepted(at in 0usize..200, to in any::<char>()) {
            let token = token("a");
            let grant = Grant::mint(&token, &digest(), GRANT_TTL).unwrap();
            let mut text: Vec<char> = grant.expose().chars().collect();
            let at = at % text.len();
            prop_assume!(text[at] != to);
            text[at] = to;
            let changed = Grant::from_text(text.into_iter().collect::<String>());
            prop_assert_eq!(changed.verify(&token, &digest()), Err(Refused));
        }

        #[test]
        fn junk_is_refused(text in ".{0,600}") {
            let refused = Grant::from_text(text).verify(&token("a"), &digest());
            prop_assert_eq!(refused, Err(Refused));
        }
    }
}
