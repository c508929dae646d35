//! `.fuseignore`: which paths of a copied directory stay behind.
//!
//! One file next to the Fusefile. The built-in rules come first, then the file's lines; the last rule that
//! matches decides, and without one a path is kept. Paths are slash separated and relative to the source
//! directory of the `copy` entry. The rules are close to git's without being them: `vendor/**` also matches
//! `vendor`, `[!a]` is no negation, and nothing below a dropped directory can be taken back.

use crate::grammar::glob::{self, Glob, Segment};

/// Name of the file.
pub const FILE_NAME: &str = ".fuseignore";

/// The rules that come before the author's.
pub const DEFAULTS: [&str; 14] = [
    ".git/",
    "node_modules/",
    "__pycache__/",
    ".venv/",
    "venv/",
    "target/",
    "dist/",
    "build/",
    ".DS_Store",
    "*.pyc",
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
];

/// Whose rule dropped a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A built-in one.
    Default,
    /// One of the author's.
    Author,
}

/// The rules in force.
#[derive(Debug, Clone)]
pub struct Ignore {
    rules: Vec<Rule>,
}

/// A line of the author's that can never match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// Line, from 1.
    pub line: u32,
    /// The line.
    pub text: String,
}

#[derive(Debug, Clone)]
struct Rule {
    origin: Origin,
    keep: bool,
    dirs_only: bool,
    pattern: Pattern,
}

#[derive(Debug, Clone)]
enum Pattern {
    /// Matches the base name, at any depth. Plain names are compared, not globbed.
    Name(String),
    NameGlob(Glob),
    /// Matches the path from the top.
    Anchored(Vec<Segment>),
}

impl Ignore {
    /// The rules of a `.fuseignore` with `text`, or of none when it is empty, and its lines that mean
    /// nothing.
    #[must_use]
    pub fn new(text: &str) -> (Self, Vec<BadLine>) {
        let mut rules: Vec<Rule> = DEFAULTS
            .iter()
            .filter_map(|line| rule(line, Origin::Default).ok().flatten())
            .collect();
        let mut bad = Vec::new();
        for (line, text) in (1..).zip(text.split('\n')) {
            match rule(text, Origin::Author) {
                Ok(found) => rules.extend(found),
                Err(_) => bad.push(BadLine {
                    line,
                    text: text.trim_end().to_owned(),
                }),
            }
        }
        (Self { rules }, bad)
    }

    /// Whose rule drops the path of these segments; `None` when it is kept.
    #[must_use]
    pub fn dropped(&self, path: &[&str], is_dir: bool) -> Option<Origin> {
        let name = path.last()?;
        let rule = self.rules.iter().rev().find(|rule| {
            (is_dir || !rule.dirs_only)
                && match &rule.pattern {
                    Pattern::Name(own) => own == name,
                    Pattern::NameGlob(glob) => glob.matches(name),
                    Pattern::Anchored(segments) => glob::matches_path(segments, path),
                }
        })?;
        (!rule.keep).then_some(rule.origin)
    }
}

/// The rule of one line; `None` for a comment or nothing.
fn rule(line: &str, origin: Origin) -> Result<Option<Rule>, glob::Malformed> {
    let line = line.trim_end_matches([' ', '\t', '\r']);
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (keep, line) = line
        .strip_prefix('!')
        .map_or((false, line), |rest| (true, rest));
    let (dirs_only, line) = line
        .strip_suffix('/')
        .map_or((false, line), |rest| (true, rest));
    let (top, line) = line
        .strip_prefix('/')
        .map_or((false, line), |rest| (true, rest));
    if line.is_empty() {
        return Ok(None);
    }
    let pattern = if top || line.contains('/') {
        Pattern::Anchored(glob::segments(line)?)
    } else if glob::has_meta(line) {
        Pattern::NameGlob(Glob::new(line)?)
    } else {
        Pattern::Name(line.to_owned())
    };
    Ok(Some(Rule {
        origin,
        keep,
        dirs_only,
        pattern,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drops(rules: &str, path: &str) -> bool {
        let (ignore, bad) = Ignore::new(rules);
        assert_eq!(bad, []);
        let is_dir = path.ends_with('/');
        let segments: Vec<&str> = path.trim_end_matches('/').split('/').collect();
        ignore.dropped(&segments, is_dir).is_some()
    }

    #[test]
    fn defaults() {
        for path in [
            ".git/",
            "a/node_modules/",
            "x.pyc",
            ".env",
            ".env.local",
            "deep/er/key.pem",
            "target/",
            ".DS_Store",
        ] {
            assert!(drops("", path), "{path}");
        }
        for path in ["build", "src/", "env", ".envrc", "target", "pem"] {
            assert!(!drops("", path), "{path}");
        }
    }

    #[test]
    fn last_match_decides() {
        assert!(!drops("!.env\n", ".env"));
        assert!(drops("!.env\n.env\n", ".env"));
        assert!(!drops("*.log\n!keep.log\n", "a/keep.log"));
        assert!(drops("*.log\n!keep.log\n", "a/other.log"));
        assert!(!drops("!build/", "build/"));
    }

    #[test]
    fn anchors_and_directories() {
        assert!(drops("/a", "a") && !drops("/a", "b/a"));
        assert!(drops("a/b", "a/b") && !drops("a/b", "x/a/b"));
        assert!(drops("a/", "x/a/") && !drops("a/", "x/a"));
        assert!(drops("vendor/**", "vendor/") && drops("vendor/**", "vendor/x/y"));
        assert!(drops("**/gen/*.rs", "gen/x.rs") && drops("**/gen/*.rs", "a/gen/x.rs"));
        assert!(!drops("a/*", "a/b/c"));
    }

    #[test]
    fn line_syntax() {
        assert!(drops("x \t\r\n", "x"));
        assert!(drops("\\#x\n\\!y", "#x") && drops("\\#x\n\\!y", "!y"));
        assert!(!drops("# x\n\n/\n!\n!/\n", "x"));
        assert!(drops("[!a]", "!") && !drops("[!a]", "b"));
        assert!(drops("A", "A") && !drops("A", "a"));
        assert!(drops(" x", " x") && !drops(" x", "x"));
    }

    #[test]
    fn malformed_lines_never_match_and_are_named() {
        let (ignore, bad) = Ignore::new("ok\n[a\nx/[b\n");
        assert_eq!(bad.iter().map(|b| b.line).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(bad[0].text, "[a");
        assert_eq!(ignore.dropped(&["[a"], false), None);
        assert_eq!(ignore.dropped(&["ok"], false), Some(Origin::Author));
        assert_eq!(ignore.dropped(&[".env"], false), Some(Origin::Default));
    }
}
