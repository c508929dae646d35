//! Colours of states. The word itself always carries the meaning.

use owo_colors::OwoColorize as _;

/// What a state means to somebody who looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As it should be.
    Good,
    /// Broken.
    Bad,
    /// On the way to something.
    Moving,
    /// Nothing in particular.
    Plain,
}

/// Running is good, failed is bad, everything on the way is moving.
pub(crate) fn tone(state: &str) -> Tone {
    match state {
        "running" | "active" | "ready" => Tone::Good,
        "failed" | "error" => Tone::Bad,
        "provisioning" | "draining" | "destroying" | "cordoned" | "creating" | "restoring"
        | "deleting" => Tone::Moving,
        _ => Tone::Plain,
    }
}

/// A state in its colour.
pub(crate) fn state(word: &str) -> String {
    match tone(word) {
        Tone::Good => word.green().to_string(),
        Tone::Bad => word.red().to_string(),
        Tone::Moving => word.yellow().to_string(),
        Tone::Plain => word.to_owned(),
    }
}
