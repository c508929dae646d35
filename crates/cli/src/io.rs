//! The two output streams and what may go where.
//!
//! Invariants: stdout carries data only (tables, blocks, JSON, ids, guest output), stderr carries the
//! talk (success, notes, warnings, errors). Colour is written always and removed by the stream when
//! it is not a terminal or `NO_COLOR` is set, so that no caller decides about it. Writing to a closed
//! pipe is an error value, never a panic.

use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;
use owo_colors::OwoColorize as _;
use serde::Serialize;

/// `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables and blocks for people.
    Table,
    /// JSON for programs.
    Json,
}

/// What the process is connected to and the format asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Io {
    format: Format,
    stdin_terminal: bool,
    stdout_terminal: bool,
    stderr_terminal: bool,
}

impl Io {
    /// Looks at the three standard streams.
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            stdin_terminal: io::stdin().is_terminal(),
            stdout_terminal: io::stdout().is_terminal(),
            stderr_terminal: io::stderr().is_terminal(),
        }
    }

    /// Whether `-o json` was given.
    pub(crate) fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Whether forms may be shown: stdin and stdout are terminals.
    pub(crate) fn interactive(self) -> bool {
        self.stdin_terminal && self.stdout_terminal
    }

    /// Whether a question can be asked on stderr and answered on stdin; stdout may be piped.
    pub(crate) fn can_ask(self) -> bool {
        self.stdin_terminal && self.stderr_terminal
    }

    /// Whether what goes to stdout is read by a person: a terminal, and not JSON.
    pub(crate) fn stdout_is_read(self) -> bool {
        self.stdout_terminal && !self.is_json()
    }

    /// The same of stderr.
    pub(crate) fn stderr_is_read(self) -> bool {
        self.stderr_terminal && !self.is_json()
    }

    /// Whether moving progress may be drawn on stderr.
    pub(crate) fn animated(self) -> bool {
        self.interactive() && self.stderr_terminal && !self.is_json()
    }

    /// Writes text to stdout as it is; the caller ends its lines.
    ///
    /// # Errors
    /// When stdout is closed or full.
    pub(crate) fn data(self, text: &str) -> io::Result<()> {
        let mut stdout = anstream::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }

    /// Writes one value as JSON: two spaces, a final newline.
    ///
    /// # Errors
    /// When stdout is closed or full.
    pub(crate) fn json(self, value: &impl Serialize) -> io::Result<()> {
        self.data(&(serde_json::to_string_pretty(value)? + "\n"))
    }

    /// Writes one value as JSON on a single line, for streams of objects.
    ///
    /// # Errors
    /// When stdout is closed or full.
    pub(crate) fn json_line(self, value: &impl Serialize) -> io::Result<()> {
        self.data(&(serde_json::to_string(value)? + "\n"))
    }

    /// A green success line on stderr.
    pub(crate) fn success(self, text: &str) {
        talk(&text.green().to_string());
    }

    /// A plain line on stderr.
    pub(crate) fn note(self, text: &str) {
        talk(text);
    }

    /// A faint line on stderr.
    pub(crate) fn faint(self, text: &str) {
        talk(&text.dimmed().to_string());
    }

    /// A yellow `warning: …` line on stderr.
    pub(crate) fn warn(self, text: &str) {
        talk(&format!("warning: {text}").yellow().to_string());
    }

    /// The message of the error that ends the program, on stderr, in exactly these words.
    pub(crate) fn error(self, text: &str) {
        talk(&text.red().to_string());
    }
}

/// One line on stderr. A closed stderr must not fail a command that did its work.
fn talk(text: &str) {
    let mut stderr = anstream::stderr().lock();
    writeln!(stderr, "{text}").ok();
}

/// Copies bytes of the guest to our stdout, untouched.
///
/// # Errors
/// When the stream is closed or full.
pub(crate) fn raw_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

/// Copies bytes of the guest to our stderr, untouched.
///
/// # Errors
/// When the stream is closed or full.
pub(crate) fn raw_stderr(bytes: &[u8]) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    stderr.write_all(bytes)?;
    stderr.flush()
}
