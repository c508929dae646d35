//! Stopping the stack, and deleting it.

use std::fs;
use std::io;

use super::error::file_error;
use super::root::{self, Step};
use super::tokens::Tokens;
use super::up::{Lock, local_client};
use super::{Error, Layout, agent, orchestrator, record::Stack};
use crate::io::Io;

/// What was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// Something ran.
    pub(crate) any: bool,
}

/// Stops the orchestrator, the host agent and the VMs, in this order, so that nobody takes a VM that
/// ends for one that was lost. Disks, database and tokens stay.
///
/// # Errors
/// When something cannot be stopped.
pub(crate) fn stop(layout: &Layout, io: Io) -> Result<Stopped, Error> {
    if !layout.is_ours() {
        return Ok(Stopped { any: false });
    }
    let agent_side = agent::daemon(layout).running().is_some() || layout.agent_dir().exists();
    if agent_side {
        root::require(io)?;
    }
    let _lock = Lock::take(layout)?;
    let mut any = orchestrator::stop(layout)?;
    if agent_side {
        any |= agent::daemon(layout).running().is_some();
        root::run(layout, Step::AgentStop)?;
        root::run(layout, Step::VmsStop)?;
    }
    Ok(Stopped { any })
}

/// Addresses under which a context may know this stack.
pub(crate) fn urls(layout: &Layout) -> Vec<String> {
    let stack = Stack::load(layout);
    stack
        .map(|stack| format!("http://127.0.0.1:{}", stack.orchestrator_port))
        .into_iter()
        .collect()
}

/// Destroys the environments of a running stack, so that nothing of them is left on the machine,
/// then stops it and deletes its state.
///
/// # Errors
/// When something cannot be stopped or deleted.
pub(crate) async fn purge(layout: &Layout, io: Io) -> Result<Stopped, Error> {
    if let Some(stack) = Stack::load(layout)
        && orchestrator::daemon(layout).running().is_some()
        && agent::daemon(layout).running().is_some()
    {
        let client = local_client(stack.ports(), Tokens::orchestrator(layout)?)?;
        destroy_all(&client, io).await?;
    }
    let stopped = stop(layout, io)?;
    if layout.is_ours() {
        root::run(layout, Step::Purge)?;
    }
    Ok(stopped)
}

/// Destroys every environment; one that is gone by then is fine.
async fn destroy_all(client: &fuse_client::Client, io: Io) -> Result<(), Error> {
    loop {
        let page = client
            .environments(&fuse_wire_api::ListEnvironments::default())
            .await?;
        if page.environments.is_empty() {
            return Ok(());
        }
        for environment in page.environments {
            io.note(&format!("destroying environment {}", environment.id));
            match client.destroy(&environment.id).await {
                Err(error) if error.is_not_found() => {}
                outcome => outcome?,
            }
        }
    }
}

/// The root step: deletes the state directory and what lies outside it.
///
/// # Errors
/// When it cannot be deleted.
pub(super) fn delete(layout: &Layout) -> Result<(), Error> {
    if !layout.is_ours() {
        return Err(Error::NotOurs {
            dir: layout.root.clone(),
        });
    }
    for dir in [&layout.socket_dir(), &layout.root] {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(file_error("delete", dir)(error));
            }
            _ => {}
        }
    }
    Ok(())
}
