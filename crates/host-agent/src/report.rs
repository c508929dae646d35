//! Showing errors to people: the chain of causes, once, on one line.

use std::error::Error;

/// The error and its causes, joined by colons. A cause that only repeats the text before it (an
/// error that passes its source through) is left out.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !cause_text.is_empty() && !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
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
