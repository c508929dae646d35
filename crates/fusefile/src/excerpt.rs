//! The line that a diagnostic is about, with a caret under the place. Plain text; callers add colour.

use std::fmt;

use crate::diagnostic::Position;

/// Widest part of a line that is shown, in columns.
const WIDTH: usize = 100;

/// The lines of a source text, found once.
#[derive(Debug, Clone)]
pub struct Excerpts<'a> {
    lines: Vec<&'a str>,
}

/// One line of source with the place that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// Line number, from 1.
    pub number: u32,
    /// The line, made safe for a terminal: one line, no control characters, cut when it is long.
    pub line: String,
    /// Columns before the place.
    pub indent: usize,
    /// Columns of the place, at least 1.
    pub width: usize,
}

impl<'a> Excerpts<'a> {
    /// Splits `source` as YAML does: at `\n`, `\r\n` and `\r`.
    #[must_use]
    pub fn new(source: &'a str) -> Self {
        let mut lines = Vec::new();
        let mut rest = source.trim_start_matches('\u{feff}');
        while let Some(at) = rest.find(['\n', '\r']) {
            lines.push(&rest[..at]);
            let skip = if rest[at..].starts_with("\r\n") { 2 } else { 1 };
            rest = &rest[at + skip..];
        }
        lines.push(rest);
        Self { lines }
    }

    /// The excerpt for a place; `None` when the source has no such line.
    #[must_use]
    pub fn at(&self, position: Position) -> Option<Excerpt> {
        let index = usize::try_from(position.line).ok()?.checked_sub(1)?;
        let line = self.lines.get(index)?;
        let column = usize::try_from(position.column).ok()?.saturating_sub(1);
        let meant = usize::try_from(position.width).ok()?.max(1);
        // The window starts early enough to show the place with some of what is before it.
        let start = if column < WIDTH * 3 / 4 {
            0
        } else {
            column - WIDTH / 2
        };
        let mut excerpt = Excerpt {
            number: position.line,
            line: String::new(),
            indent: 0,
            width: 0,
        };
        let mut shown = 0;
        if start > 0 {
            excerpt.line.push('…');
            excerpt.indent = 1;
            shown = 1;
        }
        for (at, c) in line.chars().enumerate().skip(start) {
            if shown >= WIDTH {
                excerpt.line.push('…');
                break;
            }
            let c = if c.is_control() { ' ' } else { c };
            let columns = columns(c);
            if at < column {
                excerpt.indent += columns;
            } else if at < column + meant {
                excerpt.width += columns;
            }
            shown += columns;
            excerpt.line.push(c);
        }
        excerpt.width = excerpt.width.max(1);
        Some(excerpt)
    }
}

/// The line with its number, and below it the caret:
///
/// ```text
///   3 |   memroy: 2GB
///     |   ^^^^^^
/// ```
impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>5} | {}", self.number, self.line)?;
        write!(
            f,
            "{:>5} | {}{}",
            "",
            " ".repeat(self.indent),
            "^".repeat(self.width)
        )
    }
}

/// Columns that a character takes on a terminal: none for combining marks, two for wide East Asian
/// characters and emoji.
fn columns(c: char) -> usize {
    match u32::from(c) {
        0x300..=0x36f | 0x200b..=0x200f | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f
        | 0x2e80..=0x303e
        | 0x3041..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1f64f
        | 0x1f900..=0x1f9ff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str, line: u32, column: u32, width: u32) -> String {
        Excerpts::new(source)
            .at(Position {
                line,
                column,
                width,
            })
            .unwrap()
            .to_string()
    }

    #[test]
    fn caret_under_the_place() {
        let source = "version: 1\r\nresources:\n  memroy: 2GB\n";
        assert_eq!(
            shown(source, 3, 3, 6),
            "    3 |   memroy: 2GB\n      |   ^^^^^^"
        );
        assert_eq!(shown(source, 1, 1, 1), "    1 | version: 1\n      | ^");
        // A place at the end of a line, and one in the empty last line.
        assert_eq!(
            shown(source, 1, 11, 1),
            "    1 | version: 1\n      |           ^"
        );
        assert_eq!(shown(source, 4, 1, 1), "    4 | \n      | ^");
        assert!(
            Excerpts::new(source)
                .at(Position {
                    line: 5,
                    column: 1,
                    width: 1
                })
                .is_none()
        );
    }

    #[test]
    fn wide_and_unsafe_characters() {
        assert_eq!(
            shown("日本: \u{1b}[31mx", 1, 1, 2),
            "    1 | 日本:  [31mx\n      | ^^^^"
        );
        assert_eq!(
            shown("日本: x", 1, 5, 1),
            "    1 | 日本: x\n      |       ^"
        );
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let line = format!("{}X{}", "a".repeat(5000), "b".repeat(5000));
        let excerpt = Excerpts::new(&line)
            .at(Position {
                line: 1,
                column: 5001,
                width: 1,
            })
            .unwrap();
        assert!(excerpt.line.chars().count() <= WIDTH + 1);
        assert_eq!(excerpt.line.chars().nth(excerpt.indent), Some('X'));
    }
}
