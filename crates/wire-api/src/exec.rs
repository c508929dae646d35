//! `POST /v1/environments/{id}?action=exec`, at once or as a stream.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        KnownFormat, RefOr, Schema, SchemaFormat,
        schema::{ObjectBuilder, Type},
    },
};

use crate::{
    ErrorBody, Violation,
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

/// One record of a streamed exec. The last one is `exit`, or `error` when there is no exit status to
/// tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ExecFrame {
    /// Standard output, as it is produced.
    Stdout {
        /// The bytes.
        data: Output,
    },
    /// Standard error, as it is produced.
    Stderr {
        /// The bytes.
        data: Output,
    },
    /// The command has ended.
    Exit {
        /// Exit status; 128 + signal when signalled, 124 on timeout.
        exit_code: i32,
        /// The command ran into its limit and was killed.
        #[serde(default, skip_serializing_if = "is_zero")]
        timed_out: bool,
        /// Number of the signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// How the command ended cannot be told: the guest, its host or the orchestrator went away.
    Error {
        /// The failure, as in the body of a failed request.
        error: ErrorBody,
    },
}

impl ExecFrame {
    /// The values of `event` that this build knows; a reader ignores records of other kinds.
    pub const KINDS: [&'static str; 4] = ["stdout", "stderr", "exit", "error"];
}

/// Bytes that a command wrote: base64 on the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output(pub Vec<u8>);

impl Serialize for Output {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Output {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64_STANDARD.decode(text);
        bytes.map(Self).map_err(D::Error::custom)
    }
}

impl PartialSchema for Output {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Byte)))
            .description(Some("Bytes that a command wrote, in base64."))
            .into()
    }
}

impl ToSchema for Output {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;

    #[test]
    fn frames_on_the_wire() {
        let exit = |timed_out, signal| ExecFrame::Exit {
            exit_code: 3,
            timed_out,
            signal,
        };
        let data = Output(vec![0xff, 0, b'a']);
        let error = ErrorBody {
            code: ErrorCode::Conflict,
            message: "it is gone".to_owned(),
            details: std::collections::BTreeMap::new(),
        };
        let frames = [
            (
                ExecFrame::Stdout { data: data.clone() },
                r#"{"event":"stdout","data":"/wBh"}"#,
            ),
            (
                ExecFrame::Stderr { data },
                r#"{"event":"stderr","data":"/wBh"}"#,
            ),
            (exit(false, None), r#"{"event":"exit","exit_code":3}"#),
            (
                exit(true, Some(9)),
                r#"{"event":"exit","exit_code":3,"timed_out":true,"signal":9}"#,
            ),
            (
                ExecFrame::Error { error },
                r#"{"event":"error","error":{"code":"conflict","message":"it is gone"}}"#,
            ),
        ];
        for (frame, text) in frames {
            assert_eq!(serde_json::to_string(&frame).unwrap(), text);
            assert_eq!(serde_json::from_str::<ExecFrame>(text).unwrap(), frame);
            let kind = text.split('"').nth(3).unwrap();
            assert!(ExecFrame::KINDS.contains(&kind), "{kind}");
        }
        let mangled = r#"{"event":"stdout","data":"/wB"}"#;
        assert!(serde_json::from_str::<ExecFrame>(mangled).is_err());
    }

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
