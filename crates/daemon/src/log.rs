//! Log lines on standard error, filtered by `RUST_LOG` and shaped by `FUSE_LOG_FORMAT`, and errors as a part of one.

use std::error::Error;
use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// The variable that chooses between lines for people and lines for machines.
const FORMAT: &str = "FUSE_LOG_FORMAT";
/// What is logged when `RUST_LOG` does not say.
const DEFAULT_FILTER: &str = "info,sqlx=warn,hyper=warn";

/// What `FUSE_LOG_FORMAT` may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// For people: `text`, the default.
    Text,
    /// One object a line, for what collects logs.
    Json,
}

impl Format {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "text" => Some(Self::Text),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Installs the subscriber of the process; a second call changes nothing. Settings that cannot be
/// followed are said in the log that there is then.
pub fn init() {
    let filter = EnvFilter::try_from_default_env();
    let wanted = std::env::var(FORMAT).unwrap_or_default();
    let format = Format::parse(&wanted);
    let bad_filter = std::env::var_os(EnvFilter::DEFAULT_ENV).is_some() && filter.is_err();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter.unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER)))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let installed = match format {
        Some(Format::Json) => lines.json().flatten_event(true).try_init(),
        Some(Format::Text) | None => lines.try_init(),
    };
    if installed.is_err() {
        tracing::debug!("a log subscriber is installed already");
    }
    if format.is_none() {
        tracing::warn!("{FORMAT}={wanted:?} is neither text nor json; lines are text");
    }
    if bad_filter {
        tracing::warn!(
            "RUST_LOG is not a filter (example: info,sqlx=debug); it is {DEFAULT_FILTER}"
        );
    }
}

/// An error and its causes on one line, joined by colons. A cause that the text before it says already
/// (an error that passes its source through) is left out.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let part = cause.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use thiserror::Error;

    #[derive(Debug, Error)]
    #[error("outer")]
    struct Outer(#[source] Middle);

    #[derive(Debug, Error)]
    #[error(transparent)]
    struct Middle(std::io::Error);

    #[test]
    fn each_cause_is_shown_once() {
        let error = Outer(Middle(std::io::Error::other("inner")));
        assert_eq!(chain(&error), "outer: inner");
    }
}
