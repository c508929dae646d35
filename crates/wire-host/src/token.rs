//! The bearer token of a host agent.
//!
//! Its `Debug` form never shows the value, so that a token cannot reach a log through a derived
//! `Debug` of whatever holds it.

use std::fmt;

/// The token that opens a host agent's API.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentToken(String);

impl AgentToken {
    /// Wraps a token. An empty one stands for an agent that needs none.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// The secret itself, for the one place that puts it on the wire or compares it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for AgentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentToken(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_the_value() {
        let shown = format!("{:?}", AgentToken::new("s3cret-value"));
        assert_eq!(shown, "AgentToken(redacted)");
    }
}
