//! Browser sessions: a signed cookie instead of the master token itself.
//!
//! `v1.<expiry, Unix seconds>.<32 hex nonce>.<64 hex mac>`, the mac being
//! HMAC-SHA256 under the master token of `fuse-session/v1`, expiry and nonce, a line
//! each. Nothing is kept here, so any replica takes the cookie of any other, and a
//! new master token ends all sessions.

use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderValue, header};
use fuse_wire_api::SESSION_COOKIE;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rand::Rng as _;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// How long a session lasts.
const LIFETIME: Duration = Duration::from_secs(604_800);

/// The master token, as much of it as checks need.
#[derive(Clone)]
pub(crate) struct MasterToken {
    digest: [u8; 32],
    /// Keyed with the token; a session's mac starts from a copy.
    mac: Hmac<Sha256>,
}

impl MasterToken {
    #[expect(
        clippy::expect_used,
        reason = "the error is for MACs whose keys have one length; HMAC takes any"
    )]
    pub(super) fn new(token: &str) -> Self {
        Self {
            digest: Sha256::digest(token.as_bytes()).into(),
            mac: Hmac::new_from_slice(token.as_bytes()).expect("HMAC takes any key"),
        }
    }

    /// Whether this is the token. Digests have one length, so the time of the
    /// comparison tells nothing.
    pub(crate) fn is(&self, token: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(token).into();
        digest.ct_eq(&self.digest).into()
    }

    /// The value of a new session's cookie.
    pub(crate) fn open_session(&self) -> String {
        let mut nonce = [0u8; 16];
        rand::rng().fill_bytes(&mut nonce);
        let expiry = (unix_now() + LIFETIME.as_secs()).to_string();
        let nonce = hex::encode(nonce);
        let mac = hex::encode(self.session_mac(&expiry, &nonce).finalize().into_bytes());
        format!("v1.{expiry}.{nonce}.{mac}")
    }

    /// Whether this is the cookie of a session that is not over. The raw master token
    /// does too: that is what earlier releases put there.
    pub(super) fn admits_session(&self, cookie: &str) -> bool {
        self.is_session(cookie, unix_now()) || self.is(cookie.as_bytes())
    }

    fn is_session(&self, cookie: &str, now: u64) -> bool {
        let mut parts = cookie.split('.');
        let (Some("v1"), Some(expiry), Some(nonce), Some(mac), None) = (
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
            parts.next(),
        ) else {
            return false;
        };
        let Ok(mac) = hex::decode(mac) else {
            return false;
        };
        self.session_mac(expiry, nonce).verify_slice(&mac).is_ok()
            && expiry.parse().is_ok_and(|expiry: u64| now < expiry)
    }

    fn session_mac(&self, expiry: &str, nonce: &str) -> Hmac<Sha256> {
        let text = format!("fuse-session/v1\n{expiry}\n{nonce}");
        self.mac.clone().chain_update(text.as_bytes())
    }
}

fn unix_now() -> u64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_secs()
}

/// The session cookie of a request, unless it is empty.
pub(super) fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, value)| *name == SESSION_COOKIE && !value.is_empty())
        .map(|(_, value)| value)
}

/// The `Set-Cookie` of a session; an empty value ends it.
pub(crate) fn set_cookie(value: &str, secure: bool) -> Option<HeaderValue> {
    let age = if value.is_empty() {
        0
    } else {
        LIFETIME.as_secs()
    };
    let secure = if secure { "; Secure" } else { "" };
    let text =
        format!("{SESSION_COOKIE}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}");
    let mut header = HeaderValue::try_from(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_good_until_it_ends_and_under_its_token_only() {
        let master = MasterToken::new("t0ken");
        let cookie = master.open_session();
        assert!(master.admits_session(&cookie), "{cookie}");
        assert!(!MasterToken::new("other").admits_session(&cookie));
        assert!(!cookie.contains("t0ken"));

        let [_, expiry, nonce, mac]: [&str; 4] =
            cookie.split('.').collect::<Vec<_>>().try_into().unwrap();
        let end: u64 = expiry.parse().unwrap();
        assert_eq!((nonce.len(), mac.len()), (32, 64));
        assert!(end.abs_diff(unix_now() + 604_800) < 60);
        assert!(master.is_session(&cookie, end - 1));
        assert!(!master.is_session(&cookie, end));

        for forged in [
            format!("v1.{}.{nonce}.{mac}", end + 1),
            format!("v1.{expiry}.{}.{mac}", "0".repeat(32)),
            format!("v1.{expiry}.{nonce}.{}", "0".repeat(64)),
            format!("v1.{expiry}.{nonce}."),
            format!("v1.{expiry}.{nonce}"),
            format!("v2.{expiry}.{nonce}.{mac}"),
            format!("{cookie}.x"),
            String::new(),
        ] {
            assert!(!master.admits_session(&forged), "{forged}");
        }
    }

    #[test]
    fn a_known_answer() {
        let master = MasterToken::new("key");
        let mac = master.session_mac("10", "00").finalize().into_bytes();
        let cookie = format!("v1.10.00.{}", hex::encode(mac));
        assert_eq!(
            cookie,
            "v1.10.00.182213e612ee3684bdc45bc32d22f58e20fa8fe932656afd50711a6f6ea0fd89"
        );
        assert!(master.is_session(&cookie, 9));
    }

    #[test]
    fn the_raw_token_of_earlier_releases_is_taken() {
        assert!(MasterToken::new("t0ken").admits_session("t0ken"));
        assert!(!MasterToken::new("t0ken").admits_session("t0kem"));
    }

    #[test]
    fn cookies_are_found_and_written() {
        let mut headers = HeaderMap::new();
        assert_eq!(session_cookie(&headers), None);
        headers.append(header::COOKIE, "a=1; fuse_session=; b=2".parse().unwrap());
        assert_eq!(session_cookie(&headers), None);
        headers.append(header::COOKIE, "x=y;fuse_session=v=1".parse().unwrap());
        assert_eq!(session_cookie(&headers), Some("v=1"));
        assert_eq!(
            set_cookie("v", false).unwrap(),
            "fuse_session=v; Path=/; Max-Age=604800; HttpOnly; SameSite=Lax"
        );
        assert_eq!(
            set_cookie("", true).unwrap(),
            "fuse_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax; Secure"
        );
    }
}
