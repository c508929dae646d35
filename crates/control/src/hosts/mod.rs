//! Hosts: register (probe and merge), read, cordon, remove; watched, and explained.

mod boots;
mod explain;
mod manage;
mod merge;
mod register;
pub(crate) mod watch;

pub use explain::{ExplainedHost, Explanation, HostVerdict};
pub use register::{RegisterError, Registration};

pub(crate) use watch::Retries;

/// Checks an agent URL before it is ever dialled.
///
/// # Errors
/// The rule that it breaks, as a text.
pub fn check_agent_url(url: &str) -> Result<(), String> {
    fuse_wire_host::AgentUrl::parse(url)
        .map(drop)
        .map_err(|e| crate::error::chain(&e))
}
