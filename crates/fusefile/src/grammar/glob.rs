//! Shell globs over one path segment, and over whole paths with `**`.
//!
//! `*`, `?` (neither crosses a slash), `[a-z]`, `[^a-z]`, backslash escapes. `[!a]` is not a negation. Matching
//! takes time proportional to pattern times text at worst: there is one point to go back to, never a tree
//! of them.

use thiserror::Error;

/// A pattern that means nothing: an open `[`, an empty class or range, a trailing backslash.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("malformed pattern {0:?}")]
pub struct Malformed(pub String);

/// A compiled pattern for one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Char(char),
    /// `?`
    One,
    /// `*`
    Any,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Glob {
    /// Compiles `pattern`, which holds no slash.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn new(pattern: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed(pattern.to_owned());
        let mut parts = Vec::new();
        let mut chars = pattern.chars().peekable();
        while let Some(c) = chars.next() {
            parts.push(match c {
                '*' => Part::Any,
                '?' => Part::One,
                '\\' => Part::Char(chars.next().ok_or_else(malformed)?),
                '[' => class(&mut chars).ok_or_else(malformed)?,
                c => Part::Char(c),
            });
        }
        parts.dedup_by(|a, b| *a == Part::Any && *b == Part::Any);
        Ok(Self { parts })
    }

    /// Whether the whole of `text` matches.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let mut part = 0;
        let mut rest = text;
        // Where to go back to: behind the last `*`, with one more character given to it.
        let mut retry: Option<(usize, &str)> = None;
        loop {
            match (self.parts.get(part), rest.chars().next()) {
                (None, None) => return true,
                (Some(Part::Any), _) => {
                    part += 1;
                    retry = Some((part, rest));
                    continue;
                }
                (Some(wanted), Some(c)) if wanted.takes(c) => {
                    part += 1;
                    rest = &rest[c.len_utf8()..];
                    continue;
                }
                _ => {}
            }
            let Some((behind, from)) = retry else {
                return false;
            };
            let Some(c) = from.chars().next() else {
                return false;
            };
            rest = &from[c.len_utf8()..];
            part = behind;
            retry = Some((behind, rest));
        }
    }
}

impl Part {
    fn takes(&self, c: char) -> bool {
        match self {
            Self::Char(own) => *own == c,
            Self::One => true,
            Self::Any => false,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

/// The class behind a `[`, up to and with its `]`.
fn class(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<Part> {
    let negated = chars.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    while ranges.is_empty() || chars.next_if_eq(&']').is_none() {
        let low = class_char(chars)?;
        let high = if chars.next_if_eq(&'-').is_some() {
            class_char(chars)?
        } else {
            low
        };
        ranges.push((low, high));
    }
    Some(Part::Class { negated, ranges })
}

fn class_char(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<char> {
    match chars.next()? {
        '-' | ']' => None,
        '\\' => chars.next(),
        c => Some(c),
    }
}

/// Whether `text` has any character that a glob reads as more than itself.
#[must_use]
pub fn has_meta(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

/// A segment of a path pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// `**`: any number of segments, none included.
    Deep,
    /// One segment.
    One(Glob),
}

/// Compiles a pattern with slashes.
///
/// # Errors
/// When a segment is malformed.
pub fn segments(pattern: &str) -> Result<Vec<Segment>, Malformed> {
    pattern
        .split('/')
        .map(|segment| match segment {
            "**" => Ok(Segment::Deep),
            one => Glob::new(one).map(Segment::One),
        })
        .collect()
}

/// Whether all of `path` is matched by all of `pattern`.
#[must_use]
pub fn matches_path(pattern: &[Segment], path: &[&str]) -> bool {
    let (mut at, mut pos) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(at), path.get(pos)) {
            (None, None) => return true,
            (Some(Segment::Deep), _) => {
                at += 1;
                retry = Some((at, pos));
                continue;
            }
            (Some(Segment::One(glob)), Some(name)) if glob.matches(name) => {
                at += 1;
                pos += 1;
                continue;
            }
            _ => {}
        }
        match retry {
            Some((behind, from)) if from < path.len() => {
                at = behind;
                pos = from + 1;
                retry = Some((behind, pos));
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn segment_globs() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("abc", "abc", true),
            ("*", "", true),
            ("*", "abc", true),
            ("*c", "abcbc", true),
            ("a*b*c", "axxbxxc", true),
            ("a*b*c", "axxbxx", false),
            ("?", "é", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[!a]", "!", true),
            ("[!a]", "b", false),
            (r"\*", "*", true),
            (r"\*", "x", false),
            (r"\#x", "#x", true),
            (r"[\]]", "]", true),
            (r"[\-a]", "-", true),
            ("a]", "a]", true),
            ("**", "ab", true),
            ("*.py[co]", "x.pyc", true),
            (".*", ".env", true),
        ] {
            assert_eq!(
                Glob::new(pattern).unwrap().matches(text),
                expected,
                "{pattern} on {text}"
            );
        }
        for pattern in [
            "[", "[]", "[a", "[a-", "[-a]", "[a-]", "[^]", "a\\", "[]a]", "[\\",
        ] {
            assert!(Glob::new(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn path_globs() {
        for (pattern, path, expected) in [
            ("a/*", "a/b", true),
            ("a/*", "a/b/c", false),
            ("a/**", "a", true),
            ("a/**", "a/b/c", true),
            ("**/c", "c", true),
            ("**/c", "a/b/c", true),
            ("a/**/c/**/e", "a/b/c/d/c/e", true),
            ("a/**/c/**/e", "a/b/d/e", false),
            ("**", "a/b", true),
            ("a//b", "a/b", false),
        ] {
            let path: Vec<&str> = path.split('/').collect();
            assert_eq!(
                matches_path(&segments(pattern).unwrap(), &path),
                expected,
                "{pattern}"
            );
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_escaped_text_matches_itself(text in "\\PC{0,20}", pattern in "[a*?\\[\\]\\\\^-]{0,12}") {
            if let Ok(glob) = Glob::new(&pattern) {
                // A star on both sides matches at least as much.
                let wider = Glob::new(&format!("*{pattern}*")).unwrap();
                prop_assert!(!glob.matches(&text) || wider.matches(&text));
            }
            let escaped: String = text.chars().flat_map(|c| ['\\', c]).collect();
            prop_assert!(Glob::new(&escaped).unwrap().matches(&text));
        }
    }
}
