//! Byte strings on the wire: standard base64 with padding, through `#[serde(with = "...")]`.
//!
//! Decoding is strict, because a silently mangled file is worse than a refused one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes bytes as base64.
///
/// # Errors
/// Whatever the serializer answers.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

/// Reads bytes from base64.
///
/// # Errors
/// The input is not a string or not base64.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    decode(&text).map_err(D::Error::custom)
}

/// Decodes standard base64.
///
/// # Errors
/// The text is not base64; the message says where.
pub fn decode(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    STANDARD.decode(text)
}

/// Encodes as standard base64.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
