//! Whether the agents of hosts answer, as of the last contact of this process.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use fuse_model::HostId;
use jiff::Timestamp;

/// The last contact with an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentCheck {
    /// When.
    pub at: Timestamp,
    /// Why it failed; `None` when the agent answered.
    pub error: Option<String>,
    /// Release of the agent as far as it is known; empty before it said so.
    pub version: String,
}

#[derive(Debug, Default)]
pub(crate) struct Reachability {
    checks: Mutex<HashMap<HostId, AgentCheck>>,
}

impl Reachability {
    /// Notes a contact, which tells the agent's release or why it failed. Answers whether the host's condition changed.
    pub(crate) fn note(&self, host: &HostId, contact: Result<String, String>) -> bool {
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        let before = checks.get(host).map(|last| last.version.clone());
        let (version, error) = match contact {
            Ok(version) if version.is_empty() => (before.unwrap_or_default(), None),
            Ok(version) => (version, None),
            // What an agent was before it went away is still worth knowing.
            Err(error) => (before.unwrap_or_default(), Some(error)),
        };
        let check = AgentCheck {
            at: fuse_model::now(),
            error,
            version,
        };
        let failed = check.error.is_some();
        let before = checks.insert(host.clone(), check);
        before.is_none_or(|last| last.error.is_some() != failed)
    }

    pub(crate) fn get(&self, host: &HostId) -> Option<AgentCheck> {
        self.checks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(host)
            .cloned()
    }

    pub(crate) fn forget(&self, host: &HostId) {
        self.checks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(host);
    }
}
