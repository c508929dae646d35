//! Messages of the control API that `fused` serves to its host.
//!
//! One HTTP/1.1 exchange per call on [`CONTROL_PORT`](crate::CONTROL_PORT).
//! Every error answer is an [`ErrorBody`] with a 4xx or 5xx status. Only the
//! host can reach this API, so it has no authentication of its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Blob;

/// Paths of the control API.
pub mod path {
    /// `GET` → [`Status`](super::Status).
    pub const STATUS: &str = "/v1/status";
    /// `POST` [`ExecRequest`](super::ExecRequest) → [`ExecResponse`](super::ExecResponse).
    pub const EXEC: &str = "/v1/exec";
    /// `POST` [`UploadRequest`](super::UploadRequest) → [`UploadResponse`](super::UploadResponse).
    pub const FILES: &str = "/v1/files";
    /// `PUT ?path=&mode=` with a raw body → [`UploadResponse`](super::UploadResponse).
    pub const FILE: &str = "/v1/file";
    /// `GET` with an upgrade to `fuse-attach/1`; the query says what to run.
    pub const ATTACH: &str = "/v1/attach";
    /// `POST` [`ClockRequest`](super::ClockRequest) → [`ClockResponse`](super::ClockResponse).
    pub const CLOCK: &str = "/v1/clock";
    /// `POST` [`SurfaceRequest`](super::SurfaceRequest) → [`SurfaceStatus`](super::SurfaceStatus).
    pub const SURFACE: &str = "/v1/surface";
    /// `POST` [`PowerRequest`](super::PowerRequest) → 202, then the guest goes down.
    pub const POWER: &str = "/v1/power";
    /// `GET ?follow=` → what the guest agent has logged since the boot, as text lines. With
    /// `follow=1` the answer goes on with what it logs from then on. Older agents answer 404.
    pub const LOG: &str = "/v1/log";
}

/// Exit code of a command that ran into its time limit.
pub const EXIT_TIMED_OUT: i32 = 124;
/// Exit code of a command that exists but cannot be executed.
pub const EXIT_NOT_EXECUTABLE: i32 = 126;
/// Exit code of a command that does not exist.
pub const EXIT_NOT_FOUND: i32 = 127;
/// Added to a signal's number to make the exit code of a command it ended.
pub const EXIT_SIGNAL_BASE: i32 = 128;

/// Most bytes that are kept of one output stream of a command.
pub const MAX_OUTPUT_BYTES: u64 = 8 * 1024 * 1024;
/// Most bytes of one JSON request body. Guests can be small, so larger files go by
/// [`path::FILE`], which is streamed.
pub const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;
/// Longest ready line, line feed included.
pub const MAX_READY_BYTES: usize = 16 * 1024;

/// The one line a guest sends on [`READY_PORT`](crate::READY_PORT) once it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Contract generation of the guest agent.
    pub generation: u32,
    /// Version of `fused`.
    pub fused_version: String,
    /// The VM id that the guest booted with.
    pub vm_id: String,
    /// The kernel's id of this boot.
    pub boot_id: String,
    /// Why the guest is not usable although it answers, e.g. an image without a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// State of the guest agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Contract generation of the guest agent.
    pub generation: u32,
    /// Version of `fused`.
    pub fused_version: String,
    /// The VM id that the guest booted with.
    pub vm_id: String,
    /// The kernel's id of this boot.
    pub boot_id: String,
    /// Milliseconds since the guest's kernel started.
    pub uptime_ms: u64,
    /// Why the guest is not usable although it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The public surface.
    pub surface: SurfaceStatus,
}

/// State of the guest's public surface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurfaceStatus {
    /// Whether it serves.
    pub running: bool,
    /// Address it was asked to listen on, once it has been started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Its process id in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How often it was started again after it had died by itself.
    #[serde(default)]
    pub restarts: u32,
    /// Why it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A command to run to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// Program and arguments, passed on unchanged. Without a slash the program is searched on `PATH`.
    pub cmd: Vec<String>,
    /// Added to the guest's base environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Working directory, by default the home directory of root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Standard input; without it the command reads end of file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_b64: Option<Blob>,
    /// Time limit in milliseconds, above 0.
    pub timeout_ms: u64,
    /// Cap of each output stream, at most and by default [`MAX_OUTPUT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u64>,
}

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecResponse {
    /// Exit status; see the `EXIT_` constants for commands that did not exit by themselves.
    pub exit_code: i32,
    /// Signal that ended the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Standard output.
    pub stdout_b64: Blob,
    /// Standard error.
    pub stderr_b64: Blob,
    /// Whether standard output went over the cap and lost its end.
    #[serde(default)]
    pub stdout_truncated: bool,
    /// Whether standard error went over the cap and lost its end.
    #[serde(default)]
    pub stderr_truncated: bool,
    /// Whether the time limit ended the command.
    #[serde(default)]
    pub timed_out: bool,
    /// Milliseconds from start to end.
    #[serde(default)]
    pub duration_ms: u64,
}

/// Files to write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadRequest {
    /// Written in order; the first failure ends the call.
    pub files: Vec<UploadFile>,
}

/// One file to write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadFile {
    /// Absolute path; normalised lexically, missing parents are made.
    pub path: String,
    /// Octal permission bits, by default `0644`; ignored under `/fuse`, where files are `0600`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The whole content.
    pub content_b64: Blob,
}

/// Answer to an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadResponse {
    /// Number of files written.
    pub written: u32,
}

/// Sets the guest's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRequest {
    /// Microseconds since the Unix epoch, UTC.
    pub unix_micros: i64,
    /// A clock that is off by no more than this is left as it is. Older agents set it all the same.
    #[serde(default)]
    pub tolerance_micros: u64,
}

/// Answer to a clock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockResponse {
    /// What was added to the guest's clock, in microseconds; 0 if it was left as it is.
    pub offset_micros: i64,
}

/// Starts the public surface, or starts it again with other settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurfaceRequest {
    /// Echoed by the surface.
    pub vm_id: String,
    /// Address to bind, e.g. `0.0.0.0:9550`.
    pub listen: String,
    /// Manifest in the guest.
    pub manifest_path: String,
    /// Secrets in the guest, a flat JSON map of strings.
    pub secrets_path: String,
    /// Certificate chain in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_cert_path: Option<String>,
    /// Private key in PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key_path: Option<String>,
    /// File with the bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_token_file: Option<String>,
    /// Reported by presence only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Program to run instead of the guest agent's own surface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_path: Option<String>,
    /// Appended to the program's arguments, one argument each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_args: Vec<String>,
}

/// Ends the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerRequest {
    /// How.
    pub action: PowerAction,
}

/// How a guest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PowerAction {
    /// Write everything back and power off.
    Poweroff,
    /// Write everything back and restart.
    Reboot,
}

/// Body of every answer with an error status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong and what to do.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_ignored_and_optional_ones_default() {
        let request: ExecRequest =
            serde_json::from_str(r#"{"cmd":["true"],"timeout_ms":5,"later":{"x":1}}"#).unwrap();
        assert_eq!(
            request,
            ExecRequest {
                cmd: vec!["true".into()],
                timeout_ms: 5,
                ..Default::default()
            }
        );
    }

    #[test]
    fn the_surface_of_generation_one_is_frozen() {
        let file = UploadFile {
            path: "/a".into(),
            mode: Some("0755".into()),
            content_b64: Blob(b"hi".to_vec()),
        };
        let shown = serde_json::to_string(&UploadRequest { files: vec![file] }).unwrap();
        assert_eq!(
            shown,
            r#"{"files":[{"path":"/a","mode":"0755","content_b64":"aGk="}]}"#
        );
        let power = PowerRequest {
            action: PowerAction::Poweroff,
        };
        assert_eq!(
            serde_json::to_string(&power).unwrap(),
            r#"{"action":"poweroff"}"#
        );
        let ready = Ready {
            generation: 1,
            fused_version: "0".into(),
            vm_id: "v".into(),
            boot_id: "b".into(),
            error: None,
        };
        assert_eq!(
            serde_json::to_string(&ready).unwrap(),
            r#"{"generation":1,"fused_version":"0","vm_id":"v","boot_id":"b"}"#
        );
    }
}
