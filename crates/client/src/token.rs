//! A bearer token that cannot be printed by accident.

use serde::{Deserialize, Serialize};

/// A bearer token. `Debug` hides it and there is no `Display`; serialising writes the value, for
/// the configuration file that keeps it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// Wraps a token.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for the header or the request body that carries it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_the_value() {
        let text = format!("{:?}", Some(Token::new("s3cret")));
        assert_eq!(text, "Some(Token(redacted))");
    }
}
