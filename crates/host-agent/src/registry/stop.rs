//! Ending all VMs of a host whose agent does not run (`fc-agent stop-vms`).
//!
//! What a VM is stays: its disk and its meta. So the next agent boots it again, as after a restart of
//! the host. What exists for running VMs only goes: VMMs, sockets, devices, packet rules.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinSet;

use super::host::{HostError, cgroups};
use super::meta::{Found, Meta, Metas};
use super::reattach;
use crate::cgroup::CgroupError;
use crate::config::Config;
use crate::guest::GuestClient;
use crate::net::{FirewallError, LinkError, Links, firewall};
use crate::report::chain;
use crate::vmm::process::with_argument;
use crate::vmm::{Process, Vmm};

/// How long a guest may take to stop its programs and write everything back.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(20);

/// VMs that could not be stopped.
#[derive(Debug, Error)]
pub enum StopError {
    /// The state directory cannot be used, for example because an agent runs.
    #[error(transparent)]
    State(#[from] HostError),
    /// A VMM cannot be found or ended.
    #[error("cannot end the VMM of {id}")]
    Process {
        /// The VM.
        id: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// A device cannot be removed.
    #[error("cannot remove a network device")]
    Link(#[from] LinkError),
    /// A control group cannot be removed.
    #[error(transparent)]
    Group(#[from] CgroupError),
    /// The packet rules cannot be removed.
    #[error("cannot remove the packet rules")]
    Rules(#[from] FirewallError),
    /// The work was lost.
    #[error("the work on a VM was lost")]
    Lost(#[from] tokio::task::JoinError),
}

/// Powers off every guest, ends every VMM, and takes devices and packet rules away. Returns how many
/// VMs ran.
///
/// # Errors
/// An agent runs, or something cannot be removed; doing it again goes on from there.
pub async fn stop_all(config: &Config, vmm: &Arc<dyn Vmm>, nft: &Path) -> Result<usize, StopError> {
    let _lock = reattach::lock(&config.paths.state).await?;
    let metas = Metas::open(config.paths.state.join("vms")).map_err(HostError::Metas)?;
    let metas = Arc::new(metas);
    let mut work = JoinSet::new();
    for found in metas.load().map_err(HostError::Metas)? {
        match found {
            Found::Vm(meta) => {
                work.spawn(stop(Arc::clone(&metas), Arc::clone(vmm), *meta));
            }
            Found::Damaged { name, error } => {
                tracing::error!(name, error = chain(&error), "not a vm; left alone");
            }
        }
    }
    let mut ran = 0;
    let mut failed = None;
    while let Some(done) = work.join_next().await {
        match done? {
            Ok(stopped) => ran += usize::from(stopped),
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let links = Links::open()?;
    for tap in links.with_prefix(config.net.plan.tap_prefix()).await? {
        links.remove(&tap).await?;
    }
    firewall::remove(nft, &config.net.table).await?;
    let groups = cgroups(config)?;
    for id in groups.known() {
        groups.group(&id).removed().await?;
    }
    groups.leave();
    Ok(ran)
}

/// Ends one VM; true if it ran.
async fn stop(metas: Arc<Metas>, vmm: Arc<dyn Vmm>, meta: Meta) -> Result<bool, StopError> {
    let sockets = vmm.sockets(&meta.vm_id, &metas.dir(&meta.vm_id));
    let failed = |source| StopError::Process {
        id: meta.vm_id.clone(),
        source,
    };
    // The agent may have been killed after it started the VMM and before it wrote the pid down.
    let mark = vmm.mark(&sockets);
    let candidates = match meta.process {
        Some(id) => vec![id],
        None => tokio::task::spawn_blocking(move || with_argument(&mark)).await?,
    };
    let mut ran = false;
    for id in candidates {
        let Some(process) = Process::find(id).map_err(failed)? else {
            continue;
        };
        ran = true;
        let guest = GuestClient::new(vmm.transport(&sockets));
        power_off(&meta.vm_id, &guest, &process).await;
        process.kill().await.map_err(failed)?;
    }
    for file in vmm.socket_files(&sockets) {
        // A VMM that ends in order has removed its own.
        let _gone = std::fs::remove_file(file);
    }
    if let Some(home) = vmm.home(&meta.vm_id) {
        let _gone = std::fs::remove_dir_all(home);
    }
    if ran {
        tracing::info!(vm_id = meta.vm_id, "vm stopped");
    }
    Ok(ran)
}

/// Lets the guest write everything back and end by itself. One that does not is ended all the same:
/// its file system has a journal.
async fn power_off(vm_id: &str, guest: &GuestClient, process: &Process) {
    let orderly = async {
        match guest.power_off(POWER_OFF_LIMIT).await {
            Ok(()) => process.ended().await,
            Err(error) => tracing::warn!(vm_id, error = chain(&error), "guest not powered off"),
        }
    };
    tokio::select! {
        () = orderly => {}
        // It may end before it has answered.
        () = process.ended() => {}
        () = tokio::time::sleep(POWER_OFF_LIMIT) => {
            tracing::warn!(vm_id, "the guest takes too long to power off");
        }
    }
}
