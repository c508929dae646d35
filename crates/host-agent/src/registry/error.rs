//! What can go wrong with a VM. Kinds only; the HTTP layer maps them to statuses.

use std::time::Duration;

use thiserror::Error;

use super::meta::MetaError;
use crate::cgroup::CgroupError;
use crate::disk::sealed::SealError;
use crate::disk::{ImageError, OverlayError, SpaceError};
use crate::file_error::FileError;
use crate::gpu::{InventoryError, PickError};
use crate::guest::ready::ReadyError;
use crate::guest::{ChannelError, GuestError};
use crate::huge_pages::HugePagesError;
use crate::net::{FirewallError, Index, LinkError};
use crate::snapshot::StoreError;
use crate::vmm::VmmError;

/// No such VM.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum VmError {
    /// Nothing has that id.
    #[error("vm not found")]
    NotFound,
}

/// Snapshots, and what needs them, on a host whose VMM has none.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[error(
    "{app} has no snapshots, restores or forks: a device of the host that a guest uses cannot be saved"
)]
pub struct NoSnapshots {
    /// The program.
    pub app: &'static str,
}

/// A request for a machine that cannot be.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// The id would be too long.
    #[error("name is too long: its id {id:?} has {} characters and {max} are possible", .id.len())]
    NameTooLong {
        /// The id.
        id: String,
        /// The bound.
        max: usize,
    },
    /// A figure is out of range.
    #[error("{field} must be {min} to {max}, not {value}")]
    Range {
        /// The field.
        field: &'static str,
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
        /// What was asked for.
        value: u32,
    },
}

/// A VM that was not made. Nothing of it is left, unless [`CreateError::Undo`] says so.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The request is wrong.
    #[error(transparent)]
    Spec(SpecError),
    /// The image cannot be used.
    #[error(transparent)]
    Image(ImageError),
    /// A VM of that name exists.
    #[error("vm {id} already exists")]
    Exists {
        /// Its id.
        id: String,
    },
    /// No free slot.
    #[error("the host is full: it runs {max} VMs, and FUSE_MAX_VMS allows no more")]
    Full {
        /// The ceiling.
        max: Index,
    },
    /// The snapshot it should begin with cannot be used.
    #[error(transparent)]
    Seed(StoreError),
    /// GPUs on a host without any.
    #[error("not enough free GPUs: this host has none")]
    NoGpus,
    /// The GPUs that are asked for cannot be had.
    #[error(transparent)]
    Gpus(PickError),
    /// What GPUs there are cannot be told.
    #[error("cannot tell what GPUs this host has")]
    Inventory(#[source] InventoryError),
    /// It should begin with a snapshot on a host that has none.
    #[error(transparent)]
    Unsupported(NoSnapshots),
    /// Not enough disk space.
    #[error(transparent)]
    Space(SpaceError),
    /// Not enough huge pages.
    #[error(transparent)]
    HugePages(HugePagesError),
    /// Others kept booting for too long.
    #[error("the host is busy booting other VMs; the VM waited {} s for its turn", .waited.as_secs())]
    Busy {
        /// How long it waited.
        waited: Duration,
    },
    /// A step failed.
    #[error("vm {id}: {step} failed")]
    Step {
        /// The VM.
        id: String,
        /// The step.
        step: &'static str,
        /// The reason.
        #[source]
        source: Box<StepError>,
    },
    /// It was deleted, or the agent shut down, before it was ready.
    #[error("vm {id} was deleted while it was being created")]
    Cancelled {
        /// The VM.
        id: String,
    },
    /// A failed create could not be undone; deleting the VM goes on with it.
    #[error("vm {id} could not be created ({reason}) nor removed; delete it to try again")]
    Undo {
        /// The VM.
        id: String,
        /// Why the create failed.
        reason: String,
        /// Why the undo failed.
        #[source]
        source: Box<UndoError>,
    },
    /// The task that made it is gone.
    #[error("vm {id}: the agent lost track of the create")]
    Lost {
        /// The VM.
        id: String,
    },
}

/// Why a step of a create failed.
#[derive(Debug, Error)]
pub enum StepError {
    /// Its state directory.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// Its disk.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// Its device.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Its packet rules.
    #[error(transparent)]
    Firewall(#[from] FirewallError),
    /// Its limits on the host.
    #[error(transparent)]
    Limits(#[from] CgroupError),
    /// Its VMM.
    #[error(transparent)]
    Vmm(#[from] VmmError),
    /// Its channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// Its guest.
    #[error(transparent)]
    Ready(#[from] ReadyError),
    /// Its guest answers but cannot be used.
    #[error("the guest booted from {image} cannot be used: {reason}")]
    Unusable {
        /// The image, as the caller named it or as the host is configured.
        image: String,
        /// The guest's own reason.
        reason: String,
    },
    /// Its guest took too long.
    #[error("the guest did not answer within {} s{}", .limit.as_secs(), tail(.log))]
    BootTimeout {
        /// The bound.
        limit: Duration,
        /// The end of its log.
        log: String,
    },
    /// A parameter does not fit the kernel command line.
    #[error(transparent)]
    BootParam(#[from] fuse_wire_guest::boot::BootParamError),
    /// A blocking task was lost.
    #[error("a task of the agent was lost")]
    Task(#[from] tokio::task::JoinError),
    /// Injected by a test.
    #[cfg(test)]
    #[error("injected failure")]
    Injected,
}

fn tail(log: &str) -> String {
    if log.is_empty() {
        String::new()
    } else {
        format!("; the end of its log: {log}")
    }
}

/// A part of a VM that could not be removed.
#[derive(Debug, Error)]
pub enum UndoError {
    /// Its process.
    #[error("cannot stop the VMM process {pid}")]
    Process {
        /// The pid.
        pid: i32,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Its packet rules.
    #[error(transparent)]
    Firewall(FirewallError),
    /// Its device.
    #[error(transparent)]
    Link(LinkError),
    /// What is left in its control group.
    #[error(transparent)]
    Group(CgroupError),
    /// Its files.
    #[error("cannot remove {path}")]
    Files {
        /// Which.
        path: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
}

/// A VM that was not deleted.
#[derive(Debug, Error)]
pub enum DeleteError {
    /// No such VM.
    #[error(transparent)]
    Vm(VmError),
    /// A part could not be removed.
    #[error("vm {id} is not fully removed; delete it again")]
    Undo {
        /// The VM.
        id: String,
        /// The reason.
        #[source]
        source: UndoError,
    },
    /// The agent shuts down; the next start finishes the delete.
    #[error("the agent is shutting down; vm {id} is removed when it starts again")]
    ShuttingDown {
        /// The VM.
        id: String,
    },
}

/// A guest that cannot be used now.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// No such VM.
    #[error(transparent)]
    Vm(VmError),
    /// It is still booting.
    #[error("vm {id} is booting; try again shortly")]
    Booting {
        /// The VM.
        id: String,
    },
    /// Its VMM is gone.
    #[error("vm {id} is stopped: its VMM process has ended{}", tail(.log))]
    Stopped {
        /// The VM.
        id: String,
        /// The end of its log.
        log: String,
    },
    /// It is being deleted, or was while the call ran.
    #[error("vm {id} was deleted")]
    Deleted {
        /// The VM.
        id: String,
    },
    /// It went back to a snapshot while the call ran.
    #[error("vm {id} was restored from a snapshot while the call ran")]
    Restored {
        /// The VM.
        id: String,
    },
    /// Too many calls at a time.
    #[error("vm {id} has {max} calls in flight already")]
    Busy {
        /// The VM.
        id: String,
        /// The bound.
        max: usize,
    },
    /// The guest's own answer.
    #[error(transparent)]
    Guest(GuestError),
}

/// A snapshot that was not taken. Nothing of it is left and the guest goes on, unless
/// [`SnapshotError::NotResumed`] says otherwise.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The id that it was to have belongs to another one.
    #[error("snapshot {id} already exists")]
    Exists {
        /// The id.
        id: String,
    },
    /// No such VM.
    #[error(transparent)]
    Vm(VmError),
    /// The VM does not run, or stopped running meanwhile.
    #[error(transparent)]
    Lease(LeaseError),
    /// Not enough disk space.
    #[error(transparent)]
    Space(SpaceError),
    /// It did not fit after all.
    #[error(
        "the disk of the host filled up during the snapshot: up to {missing_mib} MiB more were needed"
    )]
    Full {
        /// What there was too little.
        missing_mib: u64,
        /// What failed for it.
        #[source]
        source: Box<SnapshotError>,
    },
    /// The disk could not be copied.
    #[error("the disk was not copied")]
    Copy(#[source] SealError),
    /// Its files.
    #[error(transparent)]
    Store(FileError),
    /// The VMM did not pause, or not write the memory.
    #[error(transparent)]
    Vmm(VmmError),
    /// The machine does not go on.
    #[error("vm {id} stays paused: its VMM does not let it go on")]
    NotResumed {
        /// The VM.
        id: String,
        /// The reason.
        #[source]
        source: VmmError,
    },
    /// The agent ends.
    #[error("the agent is shutting down; the snapshot of vm {id} was not taken")]
    ShuttingDown {
        /// The VM.
        id: String,
    },
    /// A blocking task was lost.
    #[error("a task of the agent was lost")]
    Task(#[from] tokio::task::JoinError),
}

/// A VM that was not brought back to a snapshot. It is as it was, unless the variant says otherwise.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// No such VM.
    #[error(transparent)]
    Vm(VmError),
    /// No such snapshot.
    #[error(transparent)]
    Snapshot(StoreError),
    /// The VM cannot be restored now.
    #[error(transparent)]
    Lease(LeaseError),
    /// The snapshot is another VM's, or of a machine of another shape.
    #[error("snapshot {snapshot} was not taken of vm {id} as it is; fork it instead")]
    Foreign {
        /// The VM.
        id: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Not enough disk space.
    #[error(transparent)]
    Space(SpaceError),
    /// The disk could not be copied or replaced.
    #[error(transparent)]
    Files(FileError),
    /// A VMM could not be ended.
    #[error(transparent)]
    Stop(UndoError),
    /// The guest did not come up.
    #[error(transparent)]
    BringUp(Box<CreateError>),
    /// The guest did not come up, and the VM was booted from its disk of before.
    #[error("vm {id} was not restored and was booted from its disk of before")]
    RolledBack {
        /// The VM.
        id: String,
        /// Why it did not come up.
        #[source]
        source: Box<RestoreError>,
    },
    /// Neither came up.
    #[error("vm {id} was not restored and is stopped")]
    Stopped {
        /// The VM.
        id: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The agent ends.
    #[error("the agent is shutting down; look at vm {id} when it is back")]
    ShuttingDown {
        /// The VM.
        id: String,
    },
}

/// A VM that was not forked.
#[derive(Debug, Error)]
pub enum ForkError {
    /// No such VM.
    #[error(transparent)]
    Source(VmError),
    /// The new VM was not made.
    #[error(transparent)]
    Create(CreateError),
}

/// A public surface that was not started, or ports that were not published.
#[derive(Debug, Error)]
pub enum SurfaceError {
    /// No such VM.
    #[error(transparent)]
    Vm(VmError),
    /// The guest cannot be used.
    #[error(transparent)]
    Lease(LeaseError),
    /// No free host port.
    #[error("no free port left in FUSE_EXPOSE_PORT_RANGE ({first}-{last})")]
    NoPort {
        /// First port of the range.
        first: u16,
        /// Last port of the range.
        last: u16,
    },
    /// The published ports could not be written down.
    #[error("vm {id}: the published ports could not be stored")]
    Store {
        /// The VM.
        id: String,
        /// The reason.
        #[source]
        source: MetaError,
    },
    /// The packet rules could not be changed.
    #[error("vm {id}: the ports could not be published")]
    Publish {
        /// The VM.
        id: String,
        /// The reason.
        #[source]
        source: FirewallError,
    },
    /// The guest did not start it.
    #[error("vm {id}: the guest agent's public surface did not start")]
    Guest {
        /// The VM.
        id: String,
        /// The reason.
        #[source]
        source: GuestError,
    },
    /// The surface ended again.
    #[error("vm {id}: the guest agent's public surface does not run: {reason}")]
    NotRunning {
        /// The VM.
        id: String,
        /// What the guest said.
        reason: String,
    },
}
