//! Where the emulator's own log goes.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Body of `PUT /logger`: absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoggerConfig {
    /// File or FIFO; must exist or be creatable.
    pub(crate) log_path: Option<PathBuf>,
    pub(crate) level: Option<LogLevel>,
    pub(crate) show_level: Option<bool>,
    pub(crate) show_log_origin: Option<bool>,
    /// Only messages of modules that begin with this are written.
    pub(crate) module: Option<String>,
}

/// How much is logged. Read without regard to case, as the API has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warning,
    Info,
    Debug,
    Trace,
}

impl std::str::FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "off" => Ok(Self::Off),
            "error" => Ok(Self::Error),
            "warn" | "warning" => Ok(Self::Warning),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            "trace" => Ok(Self::Trace),
            _ => Err(format!(
                "unknown log level {text:?}, expected one of Off, Error, Warning, Info, Debug, Trace"
            )),
        }
    }
}

impl TryFrom<String> for LogLevel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
