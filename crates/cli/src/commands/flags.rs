//! Flags that more than one command takes, and the shapes of their values.

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use jiff::SignedDuration;

/// Size of a machine.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct SizeArgs {
    /// Virtual CPUs; 0 = left to the host agent.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) cpus: i32,
    /// Memory in MiB; 0 = left to the host agent.
    #[arg(long, default_value_t = 0, value_name = "MIB")]
    pub(crate) ram_mb: i32,
    /// Storage in GiB; 0 = left to the host agent.
    #[arg(long, default_value_t = 0, value_name = "GIB")]
    pub(crate) storage_gb: i32,
}

/// What the guest agent is told of its gateway.
#[derive(Clone, Default, Args)]
pub(crate) struct GatewayArgs {
    /// Passed to the guest agent.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "URL"
    )]
    pub(crate) gateway_url: String,
    /// Passed to the guest agent.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "TOKEN"
    )]
    pub(crate) gateway_token: String,
}

impl fmt::Debug for GatewayArgs {
    /// The token is not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayArgs")
            .field("gateway_url", &self.gateway_url)
            .finish_non_exhaustive()
    }
}

/// The task of a Fusefile.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TaskArgs {
    /// Id of the task [default: `name` of the Fusefile, else its directory].
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    pub(crate) task_id: String,
}

/// `key=value` flags with neither side empty, as labels are.
///
/// # Errors
/// The first value that has another shape.
pub(crate) fn labels(values: &[String]) -> Result<BTreeMap<String, String>, &String> {
    values
        .iter()
        .map(|value| {
            value
                .split_once('=')
                .filter(|(key, value)| !key.is_empty() && !value.is_empty())
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .ok_or(value)
        })
        .collect()
}

/// A duration with units, such as 90s or 1m30s, not negative.
pub(crate) fn duration(text: &str) -> Option<SignedDuration> {
    let duration: SignedDuration = text.parse().ok()?;
    (!duration.is_negative()).then_some(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_two_sides() {
        let given = ["disk=nvme".to_owned(), "a=b=c".to_owned()];
        let expected = [("a", "b=c"), ("disk", "nvme")];
        let expected = expected.map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(labels(&given), Ok(BTreeMap::from(expected)));
        for bad in ["disk", "=nvme", "disk="] {
            assert_eq!(labels(&[bad.to_owned()]), Err(&bad.to_owned()));
        }
    }

    #[test]
    fn tokens_are_not_in_debug_output() {
        let args = GatewayArgs {
            gateway_url: "https://g".to_owned(),
            gateway_token: "hunter2".to_owned(),
        };
        assert!(!format!("{args:?}").contains("hunter2"));
    }
}
