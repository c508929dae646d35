//! `POST /v1/vm/{id}/exec`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::EXEC_MAX;

/// Exit code of a command that ran into its limit.
pub const EXIT_TIMEOUT: i32 = 124;

/// A command to run in the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Program and arguments, passed as they are; no shell unless the caller names one.
    #[serde(default)]
    pub cmd: Vec<String>,
    /// Limit in milliseconds; absent, 0 or negative is [`EXEC_MAX`], more is cut to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    /// Variables added to the guest's default environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Working directory; absent is the guest's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

impl ExecRequest {
    /// The limit that applies, after the rule of [`Self::timeout_ms`].
    #[must_use]
    pub fn limit(&self) -> Duration {
        match self.timeout_ms.and_then(|ms| u64::try_from(ms).ok()) {
            None | Some(0) => EXEC_MAX,
            Some(ms) => Duration::from_millis(ms).min(EXEC_MAX),
        }
    }
}

/// What came of a command. A non-zero exit is a successful call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResponse {
    /// Exit status; 128 + signal when signalled, 124 on timeout, 127 not found, 126 not executable.
    pub exit_code: i32,
    /// Standard output, byte-exact, base64 on the wire.
    #[serde(with = "crate::encoding")]
    pub stdout: Vec<u8>,
    /// Standard error, byte-exact, base64 on the wire.
    #[serde(with = "crate::encoding")]
    pub stderr: Vec<u8>,
    /// The command ran into its limit and was killed; the output until then is here.
    #[serde(default)]
    pub timed_out: bool,
    /// Number of the signal that ended the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Standard output was longer than what is kept.
    #[serde(default)]
    pub stdout_truncated: bool,
    /// Standard error was longer than what is kept.
    #[serde(default)]
    pub stderr_truncated: bool,
    /// Running time in milliseconds, measured in the guest.
    #[serde(default)]
    pub duration_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limit_of(timeout_ms: Option<i64>) -> Duration {
        ExecRequest {
            timeout_ms,
            ..ExecRequest::default()
        }
        .limit()
    }

    #[test]
    fn limits() {
        assert_eq!(limit_of(None), EXEC_MAX);
        assert_eq!(limit_of(Some(0)), EXEC_MAX);
        assert_eq!(limit_of(Some(-5)), EXEC_MAX);
        assert_eq!(limit_of(Some(250)), Duration::from_millis(250));
        assert_eq!(limit_of(Some(i64::MAX)), EXEC_MAX);
    }

    #[test]
    fn an_answer_of_the_plain_contract_is_enough() {
        let answer: ExecResponse =
            serde_json::from_str(r#"{"exit_code":3,"stdout":"aGk=","stderr":""}"#).unwrap();
        assert_eq!(
            (answer.exit_code, answer.stdout.as_slice()),
            (3, b"hi".as_slice())
        );
        assert!(!answer.timed_out);
    }

    proptest! {
        #[test]
        fn output_survives_the_wire(stdout: Vec<u8>, stderr: Vec<u8>, exit_code: i32) {
            let sent = ExecResponse { exit_code, stdout, stderr, ..ExecResponse::default() };
            let text = serde_json::to_vec(&sent).unwrap();
            prop_assert_eq!(serde_json::from_slice::<ExecResponse>(&text).unwrap(), sent);
        }

        #[test]
        fn a_limit_is_never_zero_nor_above_the_ceiling(ms: Option<i64>) {
            let limit = limit_of(ms);
            prop_assert!(limit > Duration::ZERO && limit <= EXEC_MAX);
        }
    }
}
