//! The VMs of this host.
//!
//! [`Registry`] is the table of VMs and the only way to them. Each VM is owned by one task
//! (`actor`), which takes its lifecycle operations in order, so different VMs never wait for each
//! other. Commands and uploads run beside it under a [`Lease`] that a delete cancels.
//!
//! ```text
//! create ─> creating ──────────> running ──(VMM ends)──> stopped
//!              │ any step fails     │                        │
//!              v                    └──────── delete ────────┴─> deleting ─> gone
//!        undone, gone                                 agent start: stopped ─> running (cold boot)
//! ```
//!
//! What a VM may own on the host is written to its [`meta`] before it is made, so whatever happens
//! to the agent, the next start adopts, boots or removes it (`reattach`).

mod actor;
mod bring_up;
mod clock;
mod create;
mod error;
mod host;
mod journal;
mod lease;
mod logs;
pub mod meta;
mod reattach;
mod restore;
mod snapshot;
mod stop;
mod surface;
mod tables;
mod timings;
mod vm;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use fuse_wire_host::{
    CreateVmRequest, FailedCreate, ForkRequest, RestoreResponse, Snapshot, SnapshotRequest,
    StartAgentRequest, StartAgentResponse, VmView,
};

use crate::artifact::Artifacts;
use crate::disk::space;
use crate::metrics::Standing;
use crate::snapshot::StoreError;
pub use error::{
    CreateError, DeleteError, ForkError, LeaseError, NoSnapshots, RestoreError, SnapshotError,
    SurfaceError, VmError,
};
pub use host::{Host, HostError, HostParts};
pub use lease::Lease;
pub use logs::LogError;
pub(crate) use logs::{AgentLog, Console};
pub use stop::{StopError, stop_all};
use vm::Vm;

/// The table of VMs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Registry {
    host: Arc<Host>,
}

impl Registry {
    /// Takes charge of the VMs that the state directory knows: adopts those that run, boots those
    /// that do not, removes what was never finished. Returns when all are known and all packet
    /// rules stand; cold boots go on in the background.
    ///
    /// # Errors
    /// The state cannot be read, or the packet rules not written.
    pub async fn start(parts: HostParts) -> Result<Self, HostError> {
        let host = reattach::start(parts).await?;
        Ok(Self { host })
    }

    /// What the VMs run on.
    #[must_use]
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Disks that come from other hosts, and go to them.
    #[must_use]
    pub fn artifacts(&self) -> &Artifacts {
        &self.host.artifacts
    }

    /// Makes a VM and returns when its guest answers. Goes on when the caller goes away.
    ///
    /// # Errors
    /// See [`CreateError`]; nothing of the VM is left.
    pub async fn create(&self, request: CreateVmRequest) -> Result<VmView, CreateError> {
        create::create(&self.host, request).await
    }

    /// One VM.
    ///
    /// # Errors
    /// There is none of that id.
    pub fn get(&self, id: &str) -> Result<VmView, VmError> {
        Ok(self.vm(id)?.view())
    }

    /// The VMs whose name starts with `prefix`, sorted by id.
    #[must_use]
    pub fn list(&self, prefix: &str) -> Vec<VmView> {
        let mut views: Vec<_> = self.host.tables.all().iter().map(|vm| vm.view()).collect();
        views.retain(|view| {
            view.name
                .as_deref()
                .unwrap_or(&view.vm_id)
                .starts_with(prefix)
        });
        views.sort_by(|a, b| a.vm_id.cmp(&b.vm_id));
        views
    }

    /// How the host stands at this moment.
    pub(crate) fn standing(&self) -> Standing {
        let vms = self.host.tables.all();
        Standing {
            states: vms.iter().map(|vm| vm.state()).collect(),
            slots: u64::from(self.host.config.net.plan.max_vms()),
            free_bytes: space::free_bytes(self.host.disk_dir()).ok(),
            snapshot_bytes: self.host.snapshots.total_bytes(),
        }
    }

    /// The right to use a VM's guest until the VM is deleted or stops.
    ///
    /// # Errors
    /// No such VM, it does not run, or too many use it already.
    pub fn lease(&self, id: &str) -> Result<Lease, LeaseError> {
        let vm = self.vm(id).map_err(LeaseError::Vm)?;
        lease::take(&vm)
    }

    /// The console of a VM: what is there, and for a follower what comes.
    ///
    /// # Errors
    /// See [`LogError`].
    pub(crate) async fn console(&self, id: &str, follow: bool) -> Result<Console, LogError> {
        let shutdown = self.host.shutdown.clone();
        Console::open(self.vm(id)?, follow, shutdown).await
    }

    /// The log of a VM's guest agent.
    ///
    /// # Errors
    /// See [`LogError`].
    pub(crate) async fn agent_log(&self, id: &str, follow: bool) -> Result<AgentLog, LogError> {
        let shutdown = self.host.shutdown.clone();
        AgentLog::open(self.lease(id)?, follow, shutdown).await
    }

    /// What is remembered of the last create of that name that failed.
    ///
    /// # Errors
    /// Nothing is.
    pub fn failed_create(&self, id: &str) -> Result<FailedCreate, VmError> {
        self.host.failures.get(id).ok_or(VmError::NotFound)
    }

    /// Starts or restarts the guest agent's public surface and publishes ports.
    ///
    /// # Errors
    /// See [`SurfaceError`].
    pub async fn start_agent(
        &self,
        id: &str,
        request: StartAgentRequest,
    ) -> Result<StartAgentResponse, SurfaceError> {
        let vm = self.vm(id).map_err(SurfaceError::Vm)?;
        vm.start_agent(request).await
    }

    /// Removes a VM in whatever state it is, and everything it owns.
    ///
    /// # Errors
    /// No such VM, or a part of it cannot be removed; deleting again goes on from there.
    pub async fn delete(&self, id: &str) -> Result<(), DeleteError> {
        let vm = self.vm(id).map_err(DeleteError::Vm)?;
        vm.delete().await
    }

    /// Whether this host takes snapshots at all.
    ///
    /// # Errors
    /// It does not.
    pub fn snapshots_possible(&self) -> Result<(), NoSnapshots> {
        self.host.snapshots_possible()
    }

    /// Takes a snapshot of a VM. Goes on when the caller goes away.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub async fn snapshot(
        &self,
        id: &str,
        request: SnapshotRequest,
    ) -> Result<Snapshot, SnapshotError> {
        let vm = self.vm(id).map_err(SnapshotError::Vm)?;
        vm.snapshot(request).await
    }

    /// The snapshots taken of a VM, oldest first.
    ///
    /// # Errors
    /// No such VM.
    pub fn snapshots(&self, id: &str) -> Result<Vec<Snapshot>, VmError> {
        let vm = self.vm(id)?;
        Ok(self.host.snapshots.of_vm(&vm.id))
    }

    /// Brings a VM back to a snapshot. Goes on when the caller goes away.
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub async fn restore(&self, id: &str, snapshot: &str) -> Result<RestoreResponse, RestoreError> {
        let vm = self.vm(id).map_err(RestoreError::Vm)?;
        let held = self.host.snapshots.hold(snapshot);
        vm.restore(held.map_err(RestoreError::Snapshot)?).await
    }

    /// Makes a VM from a snapshot, in all other respects like the VM `source`, which is not touched.
    ///
    /// # Errors
    /// No such VM, else as [`Self::create`].
    pub async fn fork(&self, source: &str, request: ForkRequest) -> Result<VmView, ForkError> {
        let vm = self.vm(source).map_err(ForkError::Source)?;
        let spec = vm.spec.clone();
        let create = create::fork_request(&spec, request);
        self.create(create).await.map_err(ForkError::Create)
    }

    /// Removes a snapshot, whether or not its VM still exists.
    ///
    /// # Errors
    /// There is none, it is in use, or its files cannot be removed.
    pub async fn delete_snapshot(&self, id: &str) -> Result<(), StoreError> {
        let (store, id) = (Arc::clone(&self.host.snapshots), id.to_owned());
        let removed = tokio::task::spawn_blocking(move || store.remove(&id)).await;
        let dir = self.host.snapshots.dir();
        removed.unwrap_or_else(|lost| {
            let lost = std::io::Error::other(lost);
            Err(crate::file_error::failed("remove a snapshot in", dir)(lost).into())
        })
    }

    /// Runs `work` until the agent ends, which waits for it.
    pub fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let ended = self.host.shutdown.clone().cancelled_owned();
        self.host.tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                () = ended => {}
            }
        });
    }

    /// Stops taking care of VMs, which go on running. Creates under way are undone.
    pub async fn shut_down(&self) {
        self.host.shutdown.cancel();
        self.host.tasks.close();
        self.host.tasks.wait().await;
    }

    #[cfg(test)]
    pub(crate) fn leases(&self, id: &str) -> usize {
        self.vm(id).map_or(0, |vm| vm.leases.len())
    }

    fn vm(&self, id: &str) -> Result<Arc<Vm>, VmError> {
        self.host.tables.get(id).ok_or(VmError::NotFound)
    }
}
