//! `POST /v1/environments/{id}?action=exec`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Violation,
    json::{is_zero, null_default},
};

/// Time limit when the caller names none (milliseconds).
const DEFAULT_TIMEOUT_MS: u64 = 60_000;
/// Longest time limit; larger requests are clamped (milliseconds).
const MAX_TIMEOUT_MS: u64 = 600_000;

/// Exactly one of `cmd` and `shell`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ExecRequest {
    /// Argument vector, run without a shell.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub cmd: Vec<String>,
    /// A command line, run as `sh -lc <shell>`.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub shell: String,
    /// Time limit in milliseconds; <= 0 is one minute, above ten minutes is clamped.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub timeout_ms: i64,
}

/// A checked [`ExecRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecCommand {
    /// Argument vector, never empty.
    pub argv: Vec<String>,
    /// Time limit in milliseconds, 1 to 600,000.
    pub timeout_ms: u64,
}

impl ExecRequest {
    /// Checks the request and resolves its defaults.
    ///
    /// # Errors
    /// Both or none of `cmd` and `shell` given.
    pub fn check(self) -> Result<ExecCommand, Violation> {
        let argv = match (self.cmd.is_empty(), self.shell.is_empty()) {
            (false, false) => {
                return Err(Violation::invalid("cmd and shell are mutually exclusive"));
            }
            (true, true) => return Err(Violation::invalid("one of cmd or shell is required")),
            (false, true) => self.cmd,
            (true, false) => vec!["sh".to_owned(), "-lc".to_owned(), self.shell],
        };
        let timeout_ms = match u64::try_from(self.timeout_ms) {
            Ok(0) | Err(_) => DEFAULT_TIMEOUT_MS,
            Ok(ms) => ms.min(MAX_TIMEOUT_MS),
        };
        Ok(ExecCommand { argv, timeout_ms })
    }
}

/// Any exit status is a 200; streams are text, invalid UTF-8 replaced by U+FFFD.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecResponse {
    /// Exit status, or 128 + signal.
    pub exit_code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_forms() {
        let both = ExecRequest {
            cmd: vec!["a".into()],
            shell: "b".into(),
            timeout_ms: 0,
        };
        assert_eq!(
            both.check().unwrap_err().to_string(),
            "cmd and shell are mutually exclusive"
        );
        let none = ExecRequest::default();
        assert_eq!(
            none.check().unwrap_err().to_string(),
            "one of cmd or shell is required"
        );
        let shell = ExecRequest {
            shell: "echo hi".into(),
            ..ExecRequest::default()
        };
        assert_eq!(shell.check().unwrap().argv, ["sh", "-lc", "echo hi"]);
    }

    #[test]
    fn timeouts() {
        for (given, want) in [(0, 60_000), (-5, 60_000), (1, 1), (600_001, 600_000)] {
            let request = ExecRequest {
                cmd: vec!["a".into()],
                timeout_ms: given,
                ..ExecRequest::default()
            };
            assert_eq!(request.check().unwrap().timeout_ms, want);
        }
    }
}
