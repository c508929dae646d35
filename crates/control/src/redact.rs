//! Takes secret values out of texts before they are logged, stored, published or
//! returned.

/// Values shorter than this are left alone: they would match by chance.
const MIN_SECRET_BYTES: usize = 8;
/// What stands in the place of a secret.
const MARK: &str = "[REDACTED]";

/// The secret values of one request, longest first, so that a value that contains
/// another one goes as a whole.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    values: Vec<String>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor")
            .field("values", &self.values.len())
            .finish()
    }
}

impl Redactor {
    /// Remembers every value of 8 bytes or more.
    pub(crate) fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values: Vec<String> = values
            .into_iter()
            .filter(|value| value.len() >= MIN_SECRET_BYTES)
            .map(str::to_owned)
            .collect();
        values.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        values.dedup();
        Self { values }
    }

    /// The text without any of the values. NUL, which a database does not take in a
    /// text, is replaced too.
    #[must_use]
    pub(crate) fn clean(&self, text: &str) -> String {
        let mut clean = text.replace('\0', "\u{fffd}");
        for value in &self.values {
            if clean.contains(value.as_str()) {
                clean = clean.replace(value.as_str(), MARK);
            }
        }
        clean
    }

    /// As [`Redactor::clean`], cut after `max` bytes.
    #[must_use]
    pub(crate) fn clean_head(&self, text: &str, max: usize) -> String {
        let mut clean = self.clean(text);
        let mut end = clean.len().min(max);
        while !clean.is_char_boundary(end) {
            end -= 1;
        }
        clean.truncate(end);
        clean
    }

    /// The last `max` bytes of some output as clean text; invalid UTF-8 is replaced.
    /// Cleaned before it is cut, so that a cut cannot leave half a secret behind.
    #[must_use]
    pub(crate) fn clean_tail(&self, output: &[u8], max: usize) -> String {
        let clean = self.clean(&String::from_utf8_lossy(output));
        let mut start = clean.len().saturating_sub(max);
        while !clean.is_char_boundary(start) {
            start += 1;
        }
        clean[start..].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_value_goes_first() {
        let redactor = Redactor::new(["password", "password-and-more", "short"]);
        assert_eq!(
            redactor.clean("a password-and-more b password c short"),
            "a [REDACTED] b [REDACTED] c short"
        );
    }

    #[test]
    fn a_cut_leaves_no_half_secret() {
        let redactor = Redactor::new(["0123456789"]);
        assert_eq!(
            redactor.clean_tail(b"xx0123456789yy", 5),
            "TED]y".replace("TED]y", "ED]yy")
        );
        assert!(!redactor.clean_tail(b"xx0123456789yy", 8).contains("89"));
    }

    #[test]
    fn nul_is_replaced_and_heads_are_cut_between_characters() {
        assert_eq!(Redactor::default().clean("a\0b"), "a\u{fffd}b");
        assert_eq!(Redactor::default().clean_head("aää", 4), "aä");
    }

    #[test]
    fn a_cut_keeps_characters_whole() {
        assert_eq!(Redactor::default().clean_tail("aää".as_bytes(), 3), "ä");
    }

    proptest! {
        #[test]
        fn no_value_survives(secret in "[a-z]{8,16}", before in ".{0,20}", after in ".{0,20}") {
            let redactor = Redactor::new([secret.as_str()]);
            let text = format!("{before}{secret}{after}");
            prop_assert!(!redactor.clean(&text).contains(&secret));
            prop_assert!(!redactor.clean_tail(text.as_bytes(), 30).contains(&secret));
        }
    }
}
