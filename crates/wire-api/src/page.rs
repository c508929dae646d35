//! Pagination: page size clamping and opaque cursors.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};

use crate::Violation;

/// Page size when the caller names none (or nonsense).
pub const DEFAULT_PAGE: u32 = 50;
/// Largest page; larger requests are clamped, not refused.
pub const MAX_PAGE: u32 = 200;

/// `limit` and `cursor` as they stand in a query string.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageQuery {
    /// Page size; text, because an unparseable number means the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Where the last page ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Absent, unparseable or <= 0 is [`DEFAULT_PAGE`]; above [`MAX_PAGE`] is clamped.
#[must_use]
pub fn page_limit(text: Option<&str>) -> u32 {
    match text.map(str::parse::<i64>) {
        Some(Ok(n)) if n > 0 => u32::try_from(n).unwrap_or(MAX_PAGE).min(MAX_PAGE),
        _ => DEFAULT_PAGE,
    }
}

/// Cursor of the lists ordered by id (environments, hosts): the last id shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdCursor {
    /// The next page starts strictly after this id, even if that row is gone.
    pub id: String,
}

impl IdCursor {
    /// The opaque wire form: base64url without padding of a small JSON object.
    #[must_use]
    pub fn encode(&self) -> String {
        // A struct of one string always serialises.
        let json = serde_json::to_vec(self).unwrap_or_default();
        BASE64_URL_SAFE_NO_PAD.encode(json)
    }

    /// Reads a cursor from a query; empty means "from the start".
    ///
    /// # Errors
    /// `invalid pagination cursor` when it cannot be decoded.
    pub fn decode(text: Option<&str>) -> Result<Option<Self>, Violation> {
        let Some(text) = text.filter(|t| !t.is_empty()) else {
            return Ok(None);
        };
        let bad = || Violation::invalid("invalid pagination cursor");
        let json = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
        // Through a map: serde would also take `["x"]` for the struct.
        let mut map: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&json).map_err(|_| bad())?;
        match map.remove("id") {
            Some(serde_json::Value::String(id)) => Ok(Some(Self { id })),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limits_are_clamped_never_refused() {
        for (text, want) in [
            (None, 50),
            (Some(""), 50),
            (Some("x"), 50),
            (Some("0"), 50),
            (Some("-3"), 50),
            (Some("1"), 1),
            (Some("200"), 200),
            (Some("201"), 200),
            (Some("9999999999"), 200),
            (Some("99999999999999999999"), 50),
        ] {
            assert_eq!(page_limit(text), want, "{text:?}");
        }
    }

    #[test]
    fn an_empty_cursor_is_the_start() {
        assert_eq!(IdCursor::decode(None), Ok(None));
        assert_eq!(IdCursor::decode(Some("")), Ok(None));
    }

    #[test]
    fn a_bad_cursor_has_the_contract_text() {
        let array = BASE64_URL_SAFE_NO_PAD.encode(r#"["a"]"#);
        let number = BASE64_URL_SAFE_NO_PAD.encode(r#"{"id":3}"#);
        for bad in [
            "!!!",
            "AAAA",
            array.as_str(),
            number.as_str(),
            "eyJpZCI6ImEifQ==",
        ] {
            let error = IdCursor::decode(Some(bad)).unwrap_err();
            assert_eq!(
                error,
                Violation::Invalid("invalid pagination cursor".into()),
                "{bad}"
            );
        }
    }

    proptest! {
        #[test]
        fn cursors_survive_the_wire(id in ".*") {
            let cursor = IdCursor { id };
            let text = cursor.encode();
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            prop_assert_eq!(IdCursor::decode(Some(&text)), Ok(Some(cursor)));
        }

        #[test]
        fn no_text_makes_decoding_panic(text in ".*") {
            let _outcome = IdCursor::decode(Some(&text));
        }

        #[test]
        fn a_limit_is_always_in_range(text in ".*") {
            prop_assert!((1..=MAX_PAGE).contains(&page_limit(Some(&text))));
        }
    }
}
