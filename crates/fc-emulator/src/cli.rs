//! The command line, which is Firecracker's.
//!
//! Flags of the real thing that could have no effect here are not accepted.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use thiserror::Error;

use crate::config::LogLevel;

/// The API that is spoken is that of this release; what stands behind the plus
/// sign says who speaks it.
pub(crate) const VERSION: &str = concat!("1.14.0+fc-emulator.", env!("CARGO_PKG_VERSION"));

/// Firecracker's API in front of QEMU.
///
/// Runs one microVM in an emulated CPU, for machines whose KVM is missing or
/// cannot run guests. Needs qemu-system-x86_64, found through PATH or
/// FC_EMULATOR_QEMU.
#[derive(Clone, Debug, Parser)]
#[command(name = "fc-emulator", disable_version_flag = true)]
pub(crate) struct Cli {
    /// Path to unix domain socket used by the API
    #[arg(long, default_value = "/run/firecracker.socket")]
    pub(crate) api_sock: PathBuf,

    /// MicroVM unique identifier: 1 to 64 letters, digits and hyphens
    #[arg(long, default_value = "anonymous-instance")]
    pub(crate) id: InstanceId,

    /// Path to a file that contains the microVM configuration in JSON format; it is booted at once
    #[arg(long)]
    pub(crate) config_file: Option<PathBuf>,

    /// Run without an API socket
    #[arg(long, requires = "config_file")]
    pub(crate) no_api: bool,

    /// Path to a fifo or a file for the log; standard output if absent
    #[arg(long)]
    pub(crate) log_path: Option<PathBuf>,

    /// Log level: Off, Error, Warning, Info, Debug or Trace
    #[arg(long)]
    pub(crate) level: Option<LogLevel>,

    /// Log only messages of modules that begin with this
    #[arg(long)]
    pub(crate) module: Option<String>,

    /// Output the level in the log
    #[arg(long)]
    pub(crate) show_level: bool,

    /// Output the file and line of the log's origin
    #[arg(long)]
    pub(crate) show_log_origin: bool,

    /// API request payload max size, in bytes
    #[arg(long, default_value_t = 51_200)]
    pub(crate) http_api_max_payload_size: usize,

    /// Put devices on PCI; they always are
    #[arg(long)]
    pub(crate) enable_pci: bool,

    /// Run without seccomp filters; there never are any
    #[arg(long)]
    pub(crate) no_seccomp: bool,

    /// Print the version number
    #[arg(long)]
    pub(crate) version: bool,

    /// Print the format version of snapshots
    #[arg(long)]
    pub(crate) snapshot_version: bool,

    /// Print the format version of the given snapshot state file
    #[arg(long)]
    pub(crate) describe_snapshot: Option<PathBuf>,
}

/// Name of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstanceId(pub(crate) String);

/// A name that is none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum InstanceIdError {
    #[error("the length must be between 1 and 64, not {0}")]
    Length(usize),
    #[error("{0:?} at position {1} is not a letter, digit or hyphen")]
    Character(char, usize),
}

impl FromStr for InstanceId {
    type Err = InstanceIdError;

    fn from_str(text: &str) -> Result<Self, InstanceIdError> {
        if text.is_empty() || text.len() > 64 {
            return Err(InstanceIdError::Length(text.len()));
        }
        let bad = |c: &char| !(c.is_alphanumeric() || *c == '-');
        match text.chars().enumerate().find(|(_, c)| bad(c)) {
            Some((at, c)) => Err(InstanceIdError::Character(c, at)),
            None => Ok(Self(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ids_are_short_and_plain() {
        assert!("vm-1".parse::<InstanceId>().is_ok());
        assert_eq!("".parse::<InstanceId>(), Err(InstanceIdError::Length(0)));
        assert_eq!(
            "a".repeat(65).parse::<InstanceId>(),
            Err(InstanceIdError::Length(65))
        );
        assert_eq!(
            "a_b".parse::<InstanceId>(),
            Err(InstanceIdError::Character('_', 1))
        );
    }

    #[test]
    fn no_api_needs_a_configuration() {
        assert!(Cli::try_parse_from(["fc-emulator", "--no-api"]).is_err());
        assert!(Cli::try_parse_from(["fc-emulator", "--no-api", "--config-file", "f"]).is_ok());
        assert!(Cli::try_parse_from(["fc-emulator", "--metrics-path", "f"]).is_err());
    }
}
