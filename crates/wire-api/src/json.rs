//! JSON rules of the contract that serde does not have by default: `null` means
//! unset, objects must be objects (serde would take an array for a struct), only the
//! first value of a body counts, and an error text never repeats a value.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// Why a body could not be decoded. The text holds positions and types, never values,
/// because the value may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(String);

/// Decodes the first JSON value of `body`, which must be an object.
///
/// # Errors
/// The body is empty, not JSON, not an object, or a field has the wrong type.
pub fn decode<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, DecodeError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    object(&mut reader).map_err(|e| DecodeError(without_values(&e.to_string())))
}

/// As [`decode`], but nothing may follow the value.
pub(crate) fn decode_whole<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, DecodeError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    object(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|e| DecodeError(without_values(&e.to_string())))
}

/// Drops the offending value from a serde message such as
/// ``invalid type: string "hunter2", expected i32 at line 1 column 9``.
fn without_values(message: &str) -> String {
    for prefix in ["invalid type: ", "invalid value: "] {
        let Some(rest) = message.strip_prefix(prefix) else {
            continue;
        };
        let Some(cut) = rest.rfind(", expected ") else {
            continue;
        };
        let kind = rest[..cut]
            .split(['"', '`'])
            .next()
            .unwrap_or_default()
            .trim_end();
        return format!("{prefix}{kind}{}", &rest[cut..]);
    }
    for prefix in ["unknown variant ", "unknown field "] {
        if message.starts_with(prefix) {
            return prefix.trim_end().to_owned();
        }
    }
    message.to_owned()
}

/// `null` and absence both mean the default.
pub(crate) fn null_default<'de, D, T>(de: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(de)?.unwrap_or_default())
}

/// A JSON object (or `null`, meaning the default), nothing else.
pub(crate) fn object<'de, D, T>(de: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    de.deserialize_any(ObjectVisitor(PhantomData))
        .map(Option::unwrap_or_default)
}

/// As [`object`], but absence and `null` stay distinguishable from `{}`.
pub(crate) fn optional_object<'de, D, T>(de: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    de.deserialize_any(ObjectVisitor(PhantomData))
}

/// An array of objects (or `null`).
pub(crate) fn objects<'de, D, T>(de: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    let items = Option::<Vec<Strict<T>>>::deserialize(de)?.unwrap_or_default();
    Ok(items.into_iter().map(|strict| strict.0).collect())
}

struct Strict<T>(T);

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Strict<T> {
    fn deserialize<D: Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        object(de).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// By reference, because that is how serde calls it.
pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Body {
        #[serde(deserialize_with = "null_default")]
        n: i32,
        #[serde(deserialize_with = "object")]
        inner: Inner,
        #[serde(deserialize_with = "objects")]
        list: Vec<Inner>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Inner {
        a: i32,
    }

    #[test]
    fn only_the_first_value_counts_and_unknown_fields_pass() {
        let body: Body = decode(br#" {"n":4,"x":[1]} garbage"#).unwrap();
        assert_eq!(body.n, 4);
    }

    #[test]
    fn null_means_unset() {
        let body: Body = decode(br#"{"n":null,"inner":null,"list":null}"#).unwrap();
        assert_eq!(body, Body::default());
        assert_eq!(decode::<Body>(b"null").unwrap(), Body::default());
    }

    #[test]
    fn an_array_is_not_an_object() {
        for text in [
            "[]",
            "[1]",
            r#"{"inner":[1]}"#,
            r#"{"list":[[1]]}"#,
            "3",
            "\"x\"",
            "",
        ] {
            assert!(decode::<Body>(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn messages_never_repeat_a_value() {
        for text in [
            r#"{"n":"hunter2, expected i32"}"#,
            r#"{"inner":"hunter2"}"#,
            r#"{"list":"hunter2"}"#,
            r#"{"list":["hunter2"]}"#,
        ] {
            let message = decode::<Body>(text.as_bytes()).unwrap_err().to_string();
            assert!(!message.contains("hunter2"), "{message}");
            assert!(
                message.contains("invalid type: string, expected"),
                "{message}"
            );
        }
    }
}
