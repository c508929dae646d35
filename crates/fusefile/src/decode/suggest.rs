//! What the author of an unknown key probably meant.

use crate::shape::{Kind, Object};

/// Longest key worth comparing; misspellings are short and the comparison is quadratic.
const MAX_LEN: usize = 40;

/// Words that people bring from other formats, with what they are called here.
const HABITS: [(&str, &str); 17] = [
    ("command", "run"),
    ("cmd", "run"),
    ("cpu", "cpus"),
    ("vcpus", "cpus"),
    ("dest", "to"),
    ("dst", "to"),
    ("entrypoint", "run"),
    ("environment", "env"),
    ("gpus", "gpu"),
    ("mem", "memory"),
    ("memory_mb", "memory"),
    ("ports", "expose"),
    ("ram", "memory"),
    ("src", "from"),
    ("steps", "build"),
    ("timeout", "startup_timeout"),
    ("working_dir", "workdir"),
];

/// A hint for one unknown key.
pub(super) struct Hint {
    pub(super) text: String,
    /// The key of the same object that was meant, if that is clear.
    pub(super) meant: Option<&'static str>,
}

/// A hint for the only key of an object that could have been text: text with `: ` in it reads as a mapping.
pub(super) fn for_split_text(text_key: &'static str) -> Hint {
    Hint {
        text: "a command with \": \" in it needs quotes".to_owned(),
        meant: Some(text_key),
    }
}

/// A hint for `key` in an object of `shape`.
pub(super) fn for_key(shape: &'static Object, key: &str) -> Hint {
    let lower = key.to_ascii_lowercase();
    let habit = HABITS
        .iter()
        .find(|(from, _)| *from == lower)
        .map(|(_, to)| *to);
    let own = habit
        .and_then(|key| shape.field(key))
        .map(|field| field.key);
    if let Some(meant) = own.or_else(|| nearest(shape, &lower)) {
        return Hint {
            text: format!("did you mean {meant}?"),
            meant: Some(meant),
        };
    }
    let nested = |wanted: &str| {
        shape.fields.iter().find_map(|field| match &field.kind {
            Kind::Object(inner) => Some((field.key, inner.field(wanted)?.key)),
            _ => None,
        })
    };
    if let Some((object, inner)) = nested(&lower).or_else(|| nested(habit?)) {
        return Hint {
            text: format!("did you mean {inner} under {object}?"),
            meant: None,
        };
    }
    let keys: Vec<&str> = shape
        .fields
        .iter()
        .filter(|field| !field.deprecated)
        .map(|field| field.key)
        .collect();
    Hint {
        text: format!("known keys: {}", keys.join(", ")),
        meant: None,
    }
}

/// The key of the shape that `key` is a slip of the pen away from.
fn nearest(shape: &'static Object, key: &str) -> Option<&'static str> {
    if key.is_empty() || key.len() > MAX_LEN {
        return None;
    }
    let squeeze = |text: &str| text.replace(['_', '-', ' '], "");
    let bare = squeeze(key);
    shape
        .fields
        .iter()
        .map(|field| {
            (
                strsim::damerau_levenshtein(&squeeze(field.key), &bare),
                field.key,
            )
        })
        .filter(|(distance, known)| {
            *distance <= (known.len() / 3).clamp(1, 2) && *distance < bare.len()
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;

    #[test]
    fn hints() {
        for (object, key, expected) in [
            (&shape::RESOURCES, "memroy", "did you mean memory?"),
            (&shape::RESOURCES, "maxRuntime", "did you mean max_runtime?"),
            (&shape::RESOURCES, "ram", "did you mean memory?"),
            (&shape::FUSEFILE, "verison", "did you mean version?"),
            (&shape::FUSEFILE, "services ", "did you mean services?"),
            (&shape::FUSEFILE, "environment", "did you mean env?"),
            (
                &shape::FUSEFILE,
                "memory",
                "did you mean memory under resources?",
            ),
            (
                &shape::FUSEFILE,
                "ram",
                "did you mean memory under resources?",
            ),
            (
                &shape::FUSEFILE,
                "host",
                "did you mean host under placement?",
            ),
            (&shape::COPY, "x", "known keys: from, to"),
            (&shape::COPY, "", "known keys: from, to"),
            (
                &shape::STEP,
                "<<",
                "known keys: run, inputs, cache, workdir",
            ),
        ] {
            assert_eq!(for_key(object, key).text, expected, "{key}");
        }
    }
}
