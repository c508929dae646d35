//! The digests of a step's inputs in a form short enough to be kept with its layer, and what differs
//! between two of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::diagnostic::path_segment;

/// Most bytes of JSON that are kept: a page of layers holds two hundred of these.
const LIMIT: usize = 8 * 1024;
/// Hexadecimal digits of a digest that are kept. It only tells what changed; whether something did is
/// for the whole digest to say.
const DIGITS: usize = 16;
/// Paths that are named before the rest is counted.
const NAMED: usize = 3;

/// Inputs by path. Where single files would be too many, those below one directory are taken together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Segments of a path that are told apart.
    depth: usize,
    /// Digest by path.
    of: BTreeMap<String, String>,
}

impl Parts {
    /// The most detailed parts of `files` that are short enough; `None` when not even the names directly
    /// below the root are, or when there are no files.
    #[must_use]
    pub fn of(files: &BTreeMap<String, String>) -> Option<Self> {
        let deepest = files.keys().map(|path| segments(path)).max()?;
        (1..=deepest)
            .rev()
            .map(|depth| Self::at(depth, files))
            .find(|parts| parts.size() <= LIMIT)
    }

    fn at(depth: usize, files: &BTreeMap<String, String>) -> Self {
        let mut sums = BTreeMap::<&str, Sha256>::new();
        for (path, digest) in files {
            sums.entry(head(path, depth)).or_default().update(digest);
        }
        let of = sums.into_iter().map(|(path, sum)| {
            let mut digest = hex::encode(sum.finalize());
            digest.truncate(DIGITS);
            (path.to_owned(), digest)
        });
        Self {
            depth,
            of: of.collect(),
        }
    }

    fn size(&self) -> usize {
        serde_json::to_string(self).map_or(usize::MAX, |text| text.len())
    }

    /// What `files` have that these do not, and the other way round.
    #[must_use]
    pub fn changes(&self, files: &BTreeMap<String, String>) -> Changes {
        // Whoever kept this may not be us.
        let now = Self::at(self.depth.max(1), files);
        let here = now
            .of
            .iter()
            .filter_map(|(path, sum)| match self.of.get(path) {
                Some(kept) if kept == sum => None,
                Some(_) => Some((path.clone(), "")),
                None => Some((path.clone(), " (new)")),
            });
        let gone = self.of.keys().filter(|path| !now.of.contains_key(*path));
        let gone = gone.map(|path| (path.clone(), " (gone)"));
        let mut all: Vec<_> = here.chain(gone).collect();
        all.sort_unstable();
        Changes(all)
    }
}

/// Paths that differ, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes(Vec<(String, &'static str)>);

impl Changes {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The first few by name, the rest counted. What was kept came from a server, so names are shown on one
    /// line and without control characters.
    #[must_use]
    pub fn shown(&self) -> Vec<String> {
        let named = self.0.iter().take(NAMED);
        let mut said: Vec<_> = named
            .map(|(path, how)| format!("{}{how}", path_segment(path)))
            .collect();
        let rest = self.count().saturating_sub(NAMED);
        if rest > 0 {
            said.push(format!("{rest} more"));
        }
        said
    }
}

fn segments(path: &str) -> usize {
    path.split('/').count()
}

/// The first `depth` segments of a path.
fn head(path: &str, depth: usize) -> &str {
    path.match_indices('/')
        .nth(depth - 1)
        .map_or(path, |(at, _)| &path[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(path, sum): &(&str, &str)| ((*path).to_owned(), (*sum).to_owned());
        of.iter().map(owned).collect()
    }

    #[test]
    fn changes_are_named_and_counted() {
        let before = files(&[
            ("a", "1"),
            ("b/c", "2"),
            ("b/d", "3"),
            ("e", "4"),
            ("f", "5"),
        ]);
        let parts = Parts::of(&before).unwrap();
        assert_eq!(parts.changes(&before), Changes::default());
        let one = files(&[
            ("a", "1"),
            ("b/c", "x"),
            ("b/d", "3"),
            ("e", "4"),
            ("f", "5"),
        ]);
        assert_eq!(parts.changes(&one).shown(), ["b/c"]);
        let all = files(&[("a", "x"), ("b/c", "2"), ("b/g", "1"), ("e", "x")]);
        assert_eq!(
            parts.changes(&all).shown(),
            ["a", "b/d (gone)", "b/g (new)", "2 more"]
        );
    }

    #[test]
    fn many_files_are_told_by_their_directory() {
        let mut many: BTreeMap<_, _> = (0..2_000)
            .map(|n| (format!("src/part{}/{n}.c", n % 10), n.to_string()))
            .collect();
        many.insert("lock".to_owned(), "1".to_owned());
        let parts = Parts::of(&many).unwrap();
        assert_eq!((parts.depth, parts.of.len()), (2, 11));
        many.insert("src/part3/3.c".to_owned(), "x".to_owned());
        assert_eq!(parts.changes(&many).shown(), ["src/part3"]);
        // So many names side by side that there is nothing to keep.
        let flat: BTreeMap<_, _> = (0..2_000).map(|n| (n.to_string(), String::new())).collect();
        assert_eq!(Parts::of(&flat), None);
        assert_eq!(Parts::of(&BTreeMap::new()), None);
    }

    #[test]
    fn what_others_kept_does_no_harm() {
        let kept = r#"{"depth":0,"of":{"\u001b[2Jx\n":"1","":"2"}}"#;
        let parts: Parts = serde_json::from_str(kept).unwrap();
        let said = parts.changes(&files(&[("a", "1")])).shown().join(" ");
        assert!(!said.chars().any(char::is_control), "{said}");
    }
}
