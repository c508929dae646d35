//! Takes secret values out of texts before they are logged, stored, published, returned or shown.
//!
//! Used on both sides: the control plane cleans what it keeps, the CLI what a build prints. Pure.

/// Values shorter than this are left alone: they would match by chance.
const MIN_SECRET_BYTES: usize = 8;
/// Output of which this much is not settled is settled as it is: only a value that
/// repeats itself for as long comes to it.
pub const MAX_HELD: usize = 1024 * 1024;
/// What stands in the place of a secret.
const MARK: &str = "[REDACTED]";

/// The secret values of one request, longest first, so that a value that contains
/// another one goes as a whole.
#[derive(Clone, Default)]
pub struct Redactor {
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
    #[must_use]
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
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
    pub fn clean(&self, text: &str) -> String {
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
    pub fn clean_head(&self, text: &str, max: usize) -> String {
        let mut clean = self.clean(text);
        let mut end = clean.len().min(max);
        while !clean.is_char_boundary(end) {
            end -= 1;
        }
        clean.truncate(end);
        clean
    }

    /// How much of the begin of some output is settled: what follows is a character, or a
    /// value, that has perhaps only begun.
    #[must_use]
    pub fn settled(&self, output: &[u8]) -> usize {
        let held = |value: &String| Pattern::of(value.as_bytes()).begun(output);
        let mut cut = output.len() - self.values.iter().map(held).max().unwrap_or(0);
        if let Err(e) = std::str::from_utf8(&output[..cut])
            && e.error_len().is_none()
        {
            // A character of which only the begin is there; what is no UTF-8 at all never
            // becomes any.
            cut = e.valid_up_to();
        }
        // A value may end with its own begin: it must not be cut in two for that.
        while let Some(start) = self.values.iter().find_map(|value| {
            let value = value.as_bytes();
            let from = cut.saturating_sub(value.len() - 1);
            let to = (cut + value.len() - 1).min(output.len());
            let found = Pattern::of(value).find(output.get(from..to)?)?;
            (from + found < cut).then_some(from + found)
        }) {
            cut = start;
        }
        cut
    }

    /// The last `max` bytes of some output as clean text; invalid UTF-8 is replaced.
    /// Cleaned before it is cut, so that a cut cannot leave half a secret behind.
    #[must_use]
    pub fn clean_tail(&self, output: &[u8], max: usize) -> String {
        let clean = self.clean(&String::from_utf8_lossy(output));
        let mut start = clean.len().saturating_sub(max);
        while !clean.is_char_boundary(start) {
            start += 1;
        }
        clean[start..].to_owned()
    }
}

/// A text to look for (Knuth, Morris and Pratt): both sides are somebody else's, so no
/// worse than linear.
#[derive(Debug)]
pub struct Pattern<'a> {
    value: &'a [u8],
    fallback: Vec<usize>,
}

impl<'a> Pattern<'a> {
    /// An empty `value` is found nowhere.
    #[must_use]
    pub fn of(value: &'a [u8]) -> Self {
        let mut pattern = Self {
            value,
            fallback: vec![0; value.len()],
        };
        let mut at = 0;
        for (index, byte) in value.iter().enumerate().skip(1) {
            at = pattern.step(at, *byte);
            pattern.fallback[index] = at;
        }
        pattern
    }

    /// How much of it is there after one more byte.
    fn step(&self, mut at: usize, byte: u8) -> usize {
        while at > 0 && self.value[at] != byte {
            at = self.fallback[at - 1];
        }
        at + usize::from(self.value.get(at) == Some(&byte))
    }

    /// Length of the longest end of `text` that it begins with, short of the whole.
    #[must_use]
    pub fn begun(&self, text: &[u8]) -> usize {
        let last = self.value.len().saturating_sub(1);
        let end = &text[text.len().saturating_sub(last)..];
        end.iter().fold(0, |at, byte| self.step(at, *byte))
    }

    /// Where it is first.
    #[must_use]
    pub fn find(&self, text: &[u8]) -> Option<usize> {
        let mut at = 0;
        for (index, byte) in text.iter().enumerate() {
            at = self.step(at, *byte);
            if at == self.value.len() {
                return Some(index + 1 - at);
            }
        }
        None
    }
}

/// Output that comes in pieces, made clean piece by piece: a value that two pieces share
/// is taken out like any other.
#[derive(Debug)]
pub struct Flow {
    redactor: Redactor,
    held: Vec<u8>,
}

impl Flow {
    /// Of output in which these values may be.
    #[must_use]
    pub fn new(redactor: Redactor) -> Self {
        Self {
            redactor,
            held: Vec::new(),
        }
    }

    /// Takes a piece; answers with what is settled by now.
    #[must_use]
    pub fn push(&mut self, piece: &[u8]) -> String {
        self.held.extend_from_slice(piece);
        let settled = match self.held.len() {
            0..MAX_HELD => self.redactor.settled(&self.held),
            all => all,
        };
        self.take(settled)
    }

    /// What is left at the end.
    #[must_use]
    pub fn finish(&mut self) -> String {
        self.take(self.held.len())
    }

    fn take(&mut self, count: usize) -> String {
        let text: Vec<u8> = self.held.drain(..count).collect();
        self.redactor.clean(&String::from_utf8_lossy(&text))
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
