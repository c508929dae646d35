//! What to probe and how often.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

/// A probe with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::surface) struct Config {
    pub(super) check: Check,
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
    pub(super) retries: u32,
    pub(super) start_period: Duration,
}

/// What an attempt does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// `GET` on a port of this guest.
    Http { port: u16, path: String },
    /// A command, without a shell.
    Exec(Vec<String>),
}

/// Why a probe does not start.
#[derive(Debug, Error)]
pub(in crate::surface) enum ConfigError {
    /// The file is there and cannot be read.
    #[error("cannot read the healthcheck {}", path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// It is not what it should be.
    #[error("the healthcheck {} is not usable: {reason}", path.display())]
    Malformed {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct File {
    http: Option<Http>,
    exec: Vec<String>,
    interval_seconds: i64,
    timeout_seconds: i64,
    retries: i64,
    start_period_seconds: i64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Http {
    port: u16,
    path: String,
}

impl Config {
    pub(super) fn load(path: &Path) -> Result<Option<Self>, ConfigError> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(ConfigError::Unreadable {
                    path: path.to_owned(),
                    source,
                });
            }
        };
        let malformed = |reason| ConfigError::Malformed {
            path: path.to_owned(),
            reason,
        };
        let file: File = serde_json::from_slice(&text).map_err(|e| malformed(e.to_string()))?;
        Self::of(file).map(Some).map_err(malformed)
    }

    fn of(file: File) -> Result<Self, String> {
        let check = match (file.http, file.exec.is_empty()) {
            (Some(http), true) if http.port > 0 => Check::Http {
                port: http.port,
                path: match http.path.as_str() {
                    "" => "/".to_owned(),
                    path => path.to_owned(),
                },
            },
            (Some(_), true) => return Err("http.port must be 1 to 65535".to_owned()),
            (None, false) => Check::Exec(file.exec),
            (Some(_), false) | (None, true) => {
                return Err("exactly one of http and exec must be given".to_owned());
            }
        };
        let or = |given: i64, default: u32| {
            u32::try_from(given)
                .ok()
                .filter(|n| *n > 0)
                .unwrap_or(default)
        };
        let seconds = |given, default| Duration::from_secs(or(given, default).into());
        let interval = seconds(file.interval_seconds, 10);
        Ok(Self {
            check,
            interval,
            timeout: seconds(file.timeout_seconds, 2).min(interval),
            retries: or(file.retries, 3),
            start_period: seconds(file.start_period_seconds, 0),
        })
    }
}
