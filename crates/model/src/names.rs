//! The names of closed lists: one spelling in the store, on the wire and in texts.

/// Gives an enum that has `ALL` and `as_str` its `Display` and `FromStr`.
macro_rules! named {
    ($type:ty, $what:literal) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let named = Self::ALL.into_iter().find(|value| value.as_str() == text);
                named.ok_or_else(|| $crate::UnknownName::new($what, text))
            }
        }
    };
}
pub(crate) use named;
