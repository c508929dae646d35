//! What runs: pid files and `/health`, nothing that would need root.

use std::time::Duration;

use fuse_client::{BaseUrl, Client};
use serde::Serialize;

use super::record::Stack;
use super::{Layout, agent, orchestrator};
use crate::app::options;

/// How long the orchestrator may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was found.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    /// The orchestrator.
    pub(crate) orchestrator: Program,
    /// The host agent.
    pub(crate) agent: Program,
    /// `firecracker` or `emulator`, once a stack was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) vmm: Option<String>,
    /// Why that one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// One program.
#[derive(Debug, Serialize)]
pub(crate) struct Program {
    /// Whether its process is there.
    pub(crate) running: bool,
    /// The process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    /// Where it listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    /// Whether it answers; of the orchestrator only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) healthy: Option<bool>,
}

impl Status {
    /// Everything runs and answers.
    pub(crate) fn is_up(&self) -> bool {
        self.orchestrator.healthy == Some(true) && self.agent.running
    }
}

/// Looks.
pub(crate) async fn look(layout: &Layout) -> Status {
    let stack = Stack::load(layout);
    let ports = stack.as_ref().map(Stack::ports);
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let orchestrator_url = ports.map(|ports| url(ports.orchestrator));
    let healthy = match &orchestrator_url {
        Some(url) => is_healthy(url).await,
        None => false,
    };
    let orchestrator = orchestrator::daemon(layout)
        .running()
        .map(|process| process.pid);
    let agent = agent::daemon(layout).running().map(|process| process.pid);
    Status {
        orchestrator: Program {
            running: orchestrator.is_some(),
            pid: orchestrator,
            url: orchestrator_url,
            healthy: Some(orchestrator.is_some() && healthy),
        },
        agent: Program {
            running: agent.is_some(),
            pid: agent,
            url: ports.map(|ports| url(ports.agent)),
            healthy: None,
        },
        vmm: stack.as_ref().map(|stack| stack.vmm.clone()),
        reason: stack.map(|stack| stack.reason),
    }
}

async fn is_healthy(url: &str) -> bool {
    let Ok(base_url) = BaseUrl::parse(url) else {
        return false;
    };
    let mut options = options(base_url, None);
    options.request_timeout = PATIENCE;
    options.retry_refused = false;
    match Client::new(options) {
        Ok(client) => client.health().await.is_ok(),
        Err(_) => false,
    }
}
