//! What is wrong with a Fusefile, as data.
//!
//! A diagnostic carries the file, the position, the field path and the message apart, so that nobody
//! has to parse text back. Every stage makes them, the command line renders them: one line each with
//! [`Diagnostic`]'s `Display`, or with the source below it through [`crate::excerpt`].
//!
//! Each diagnostic is small whatever the input: values and keys quoted in it are cut (see
//! [`quoted`]), so a hostile file cannot make the list of its problems much larger than itself.

use std::fmt;

use serde::Serialize;

/// Longest part of an offending value or key that a diagnostic repeats, in characters.
const QUOTE_LIMIT: usize = 120;

/// Most problems that one stage lists; nobody reads more, and a broken file of a megabyte has many.
const MAX_PROBLEMS: usize = 500;

/// A place in the source text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// How many characters of that line are meant; at least 1.
    pub width: u32,
}

impl Position {
    /// The first character of the file: where something is missing from the whole of it.
    pub const START: Self = Self {
        line: 1,
        column: 1,
        width: 1,
    };
}

/// Whether a diagnostic makes the file invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file is valid, yet probably does not do what its author wants.
    Warning,
}

/// One problem in one place of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The file as the user named it (the Fusefile, or its `.fuseignore`).
    pub file: String,
    /// Where in that file; `None` when no place in it is to blame.
    #[serde(flatten)]
    pub position: Option<Position>,
    /// Path of the field, for example `services.db.ports[0]`; `None` for the text as a whole.
    pub field: Option<String>,
    /// What is wrong, without the file or field in front.
    pub message: String,
    /// What the author probably meant, when that is clear.
    pub suggestion: Option<String>,
}

impl Diagnostic {
    /// The message with the suggestion behind it: what a reader without columns gets to see.
    #[must_use]
    pub fn text(&self) -> String {
        match &self.suggestion {
            Some(suggestion) => format!("{} ({suggestion})", self.message),
            None => self.message.clone(),
        }
    }
}

/// `<file>[:<line>]: [<field>: ]<message>[ (<suggestion>)]`
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(position) = self.position {
            write!(f, ":{}", position.line)?;
        }
        f.write_str(": ")?;
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.message)?;
        match &self.suggestion {
            Some(suggestion) => write!(f, " ({suggestion})"),
            None => Ok(()),
        }
    }
}

/// Collects the problems of one stage over one file.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    file: &'a str,
    problems: Vec<Diagnostic>,
    dropped: usize,
}

impl<'a> Report<'a> {
    /// An empty report about `file`.
    pub(crate) fn new(file: &'a str) -> Self {
        Self {
            file,
            problems: Vec::new(),
            dropped: 0,
        }
    }

    /// Adds an error. An empty `field` means the text as a whole.
    pub(crate) fn error(
        &mut self,
        at: Option<Position>,
        field: impl Into<String>,
        message: impl Into<String>,
    ) {
        self.hinted(at, field, message, None);
    }

    /// Adds an error with what the author probably meant.
    pub(crate) fn hinted(
        &mut self,
        at: Option<Position>,
        field: impl Into<String>,
        message: impl Into<String>,
        suggestion: Option<String>,
    ) {
        self.push(
            Severity::Error,
            at,
            field.into(),
            message.into(),
            suggestion,
        );
    }

    /// Adds a warning.
    pub(crate) fn warning(
        &mut self,
        at: Option<Position>,
        field: impl Into<String>,
        message: impl Into<String>,
        suggestion: Option<String>,
    ) {
        self.push(
            Severity::Warning,
            at,
            field.into(),
            message.into(),
            suggestion,
        );
    }

    fn push(
        &mut self,
        severity: Severity,
        position: Option<Position>,
        field: String,
        message: String,
        suggestion: Option<String>,
    ) {
        if self.problems.len() == MAX_PROBLEMS {
            self.dropped += 1;
            return;
        }
        self.problems.push(Diagnostic {
            severity,
            file: self.file.to_owned(),
            position,
            field: Some(field).filter(|field| !field.is_empty()),
            message,
            suggestion,
        });
    }

    /// The problems in the order they were added.
    pub(crate) fn into_problems(mut self) -> Vec<Diagnostic> {
        if self.dropped > 0 {
            self.problems.push(Diagnostic {
                severity: Severity::Error,
                file: self.file.to_owned(),
                position: None,
                field: None,
                message: format!("{} more problems; fix these first", self.dropped),
                suggestion: None,
            });
        }
        self.problems
    }
}

/// `text` in double quotes on one line: control characters escaped, the end cut when it is long.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for (count, c) in text.chars().enumerate() {
        if count == QUOTE_LIMIT {
            out.push('…');
            break;
        }
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.extend(c.escape_default());
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A map key as part of a field path: as written, but on one line and cut when it is long.
#[must_use]
pub fn path_segment(key: &str) -> String {
    let plain = !key.is_empty()
        && key.chars().all(|c| !c.is_control())
        && key.chars().count() <= QUOTE_LIMIT;
    if plain { key.to_owned() } else { quoted(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_form() {
        let mut d = Diagnostic {
            severity: Severity::Error,
            file: "app/Fusefile".into(),
            position: Some(Position {
                line: 3,
                column: 5,
                width: 6,
            }),
            field: Some("resources".into()),
            message: "unknown key \"memroy\"".into(),
            suggestion: Some("did you mean memory?".into()),
        };
        assert_eq!(
            d.to_string(),
            "app/Fusefile:3: resources: unknown key \"memroy\" (did you mean memory?)"
        );
        d.position = None;
        d.field = None;
        d.suggestion = None;
        assert_eq!(d.to_string(), "app/Fusefile: unknown key \"memroy\"");
    }

    #[test]
    fn quoting_stays_on_one_line_and_short() {
        assert_eq!(quoted("a\nb\"\u{1b}"), "\"a\\nb\\\"\\u{1b}\"");
        assert_eq!(quoted(&"x".repeat(5000)).chars().count(), QUOTE_LIMIT + 3);
        assert_eq!(path_segment("plain key"), "plain key");
        assert_eq!(path_segment("a\nb"), "\"a\\nb\"");
        assert_eq!(path_segment(""), "\"\"");
    }
}
