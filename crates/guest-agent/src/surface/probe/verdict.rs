//! The verdict and how attempts change it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use jiff::Timestamp;
use serde::Serialize;

/// Most of a failure's text that is kept (bytes).
const MESSAGE_LIMIT: usize = 512;

/// What the probe thinks of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Starting,
    Passing,
    Failing,
}

/// State, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::surface) struct Verdict {
    pub(super) state: State,
    pub(super) since: Timestamp,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) failures: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Verdict {
    pub(super) fn starting(now: Timestamp) -> Self {
        Self {
            state: State::Starting,
            since: now,
            failures: 0,
            message: String::new(),
        }
    }

    /// Takes an attempt in. The start period shields failures until the first success.
    pub(super) fn fold(
        &mut self,
        outcome: Result<(), String>,
        is_shielded: bool,
        retries: u32,
        now: Timestamp,
    ) {
        match outcome {
            Ok(()) => {
                self.failures = 0;
                self.message.clear();
                self.enter(State::Passing, now);
            }
            Err(message) => {
                self.message = head(message);
                if self.state == State::Starting && is_shielded {
                    return;
                }
                self.failures = self.failures.saturating_add(1);
                if self.failures >= retries {
                    self.enter(State::Failing, now);
                }
            }
        }
    }

    fn enter(&mut self, state: State, now: Timestamp) {
        if self.state != state {
            self.state = state;
            self.since = now;
        }
    }

    /// Replaces the file in one step, so that a reader sees one verdict or the other.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        let mut draft = file.as_os_str().to_owned();
        draft.push(".tmp");
        fs::write(&draft, serde_json::to_vec(self)?)?;
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o644))?;
        fs::rename(&draft, file)
    }
}

fn head(mut text: String) -> String {
    let mut end = text.len().min(MESSAGE_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
