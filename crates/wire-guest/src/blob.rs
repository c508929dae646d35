//! Bytes that travel as standard base64 inside JSON.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Binary data, written as padded standard base64.
///
/// Its `Debug` form shows the length only: uploads carry credentials.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Base64;
        impl Visitor<'_> for Base64 {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a base64 string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Blob, E> {
                STANDARD
                    .decode(text)
                    .map(Blob)
                    .map_err(|_| E::custom("not valid base64"))
            }
        }
        deserializer
            .deserialize_str(Base64)
            .map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::Blob;

    #[test]
    fn debug_hides_content_and_bad_base64_is_refused() {
        assert_eq!(format!("{:?}", Blob(b"secret".to_vec())), "Blob(6 bytes)");
        assert!(serde_json::from_str::<Blob>("\"%%\"").is_err());
        let text = serde_json::to_string(&Blob(vec![0, 255, 7])).unwrap();
        assert_eq!(text, "\"AP8H\"");
        assert_eq!(
            serde_json::from_str::<Blob>(&text).unwrap().0,
            vec![0, 255, 7]
        );
    }
}
