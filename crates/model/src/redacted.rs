//! A wrapper for values that must never be printed.
//!
//! `Debug` and `Display` show a fixed mark; the value itself comes out only by
//! the explicit [`Redacted::expose`]. It deliberately has no `Serialize`.

use std::fmt;

/// A secret: a token, a key, a secret map.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Redacted<T>(T);

impl<T> Redacted<T> {
    /// Wraps a secret.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The secret itself, for the one place that has to send or compare it.
    pub const fn expose(&self) -> &T {
        &self.0
    }

    /// Takes the secret out.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> From<T> for Redacted<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

impl<T> fmt::Display for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[REDACTED]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_prints_the_value() {
        let secret = Redacted::new("hunter2".to_owned());
        assert_eq!(format!("{secret} {secret:?}"), "[REDACTED] [REDACTED]");
        assert_eq!(secret.expose(), "hunter2");
    }
}
