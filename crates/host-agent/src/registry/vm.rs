//! The outside of a VM: what anybody may know of it, and how to ask its task for something.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuse_wire_host::{
    RestoreResponse, Snapshot, SnapshotRequest, StartAgentRequest, StartAgentResponse, VmState,
    VmView,
};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::{DeleteError, LeaseError, RestoreError, SnapshotError, SurfaceError, VmError};
use super::host::Host;
use super::lease::MAX_LEASES;
use super::meta::{Meta, Spec};
use crate::gpu::Claim;
use crate::guest::GuestClient;
use crate::snapshot::Held;

/// Operations that may wait for a VM's task.
const QUEUE: usize = 16;

/// An operation that a VM's task takes in order.
#[derive(Debug)]
pub(super) enum Op {
    StartAgent {
        request: Box<StartAgentRequest>,
        reply: oneshot::Sender<Result<StartAgentResponse, SurfaceError>>,
    },
    Snapshot {
        request: SnapshotRequest,
        reply: oneshot::Sender<Result<Snapshot, SnapshotError>>,
    },
    Restore {
        from: Held,
        reply: oneshot::Sender<Result<RestoreResponse, RestoreError>>,
    },
    Delete {
        reply: oneshot::Sender<Result<(), DeleteError>>,
    },
}

/// What changes of a VM.
#[derive(Debug, Clone)]
pub(super) struct Status {
    pub(super) state: VmState,
    pub(super) boot_id: Option<String>,
    pub(super) guest_version: Option<String>,
}

impl Status {
    pub(super) fn of(meta: &Meta, state: VmState) -> Self {
        Self {
            state,
            boot_id: meta.boot_id.clone(),
            guest_version: meta.guest_version.clone(),
        }
    }
}

/// A VM, as everybody but its own task sees it.
#[derive(Debug)]
pub(super) struct Vm {
    pub(super) id: String,
    pub(super) spec: Spec,
    pub(super) gpus: Claim,
    url: String,
    log: PathBuf,
    status: watch::Receiver<Status>,
    ops: mpsc::Sender<Op>,
    /// Cancelled as soon as somebody asks for the delete: ends leases and whatever the task waits for.
    pub(super) stop: CancellationToken,
    /// Counts leases, so that a delete can wait for their end.
    pub(super) leases: TaskTracker,
    pub(super) lease_slots: Arc<Semaphore>,
    pub(super) guest: GuestClient,
}

/// The inside ends of a [`Vm`], for its task.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) ops: mpsc::Receiver<Op>,
    pub(super) status: watch::Sender<Status>,
}

impl Vm {
    pub(super) fn new(host: &Host, meta: &Meta, state: VmState) -> (Arc<Self>, Mailbox) {
        let (ops, inbox) = mpsc::channel(QUEUE);
        let (set_status, status) = watch::channel(Status::of(meta, state));
        let sockets = host.vmm.sockets(&meta.vm_id, &host.metas.dir(&meta.vm_id));
        let vm = Self {
            id: meta.vm_id.clone(),
            spec: meta.spec.clone(),
            gpus: meta.gpus.clone(),
            url: host.url(meta.slot.host_port),
            log: host.log_of(&meta.vm_id),
            status,
            ops,
            stop: CancellationToken::new(),
            leases: TaskTracker::new(),
            lease_slots: Arc::new(Semaphore::new(MAX_LEASES)),
            guest: GuestClient::new(host.vmm.transport(&sockets)),
        };
        (
            Arc::new(vm),
            Mailbox {
                ops: inbox,
                status: set_status,
            },
        )
    }

    pub(super) fn view(&self) -> VmView {
        let status = self.status.borrow().clone();
        VmView {
            vm_id: self.id.clone(),
            url: self.url.clone(),
            name: Some(self.spec.name.clone()),
            owner: self.spec.owner.clone(),
            state: Some(status.state),
            boot_id: status.boot_id,
            guest_version: status.guest_version,
            timings_ms: None,
        }
    }

    pub(super) fn state(&self) -> VmState {
        self.status.borrow().state
    }

    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// Resolves when the VM does not run, or its task is gone.
    pub(super) async fn not_running(&self) {
        let mut status = self.status.clone();
        let _gone = status
            .wait_for(|status| status.state != VmState::Running)
            .await;
    }

    /// Resolves when the VM prints nothing more: it has stopped or goes, or its task is gone.
    pub(super) async fn ended(&self) {
        let mut status = self.status.clone();
        let over = |status: &Status| matches!(status.state, VmState::Stopped | VmState::Deleting);
        let _gone = status.wait_for(over).await;
    }

    pub(super) async fn start_agent(
        &self,
        request: StartAgentRequest,
    ) -> Result<StartAgentResponse, SurfaceError> {
        let (reply, answer) = oneshot::channel();
        let request = Box::new(request);
        let sent = self.ops.send(Op::StartAgent { request, reply }).await;
        sent.map_err(|_| SurfaceError::Vm(VmError::NotFound))?;
        let gone = || {
            SurfaceError::Lease(LeaseError::Deleted {
                id: self.id.clone(),
            })
        };
        answer.await.map_err(|_| gone())?
    }

    pub(super) async fn snapshot(
        &self,
        request: SnapshotRequest,
    ) -> Result<Snapshot, SnapshotError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.ops.send(Op::Snapshot { request, reply }).await;
        sent.map_err(|_| SnapshotError::Vm(VmError::NotFound))?;
        let id = || self.id.clone();
        answer
            .await
            .map_err(|_| SnapshotError::ShuttingDown { id: id() })?
    }

    pub(super) async fn restore(&self, from: Held) -> Result<RestoreResponse, RestoreError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.ops.send(Op::Restore { from, reply }).await;
        sent.map_err(|_| RestoreError::Vm(VmError::NotFound))?;
        let id = || self.id.clone();
        answer
            .await
            .map_err(|_| RestoreError::ShuttingDown { id: id() })?
    }

    pub(super) async fn delete(&self) -> Result<(), DeleteError> {
        // Before the operation is queued: the task may be busy with what this ends.
        self.stop.cancel();
        let (reply, answer) = oneshot::channel();
        let sent = self.ops.send(Op::Delete { reply }).await;
        sent.map_err(|_| DeleteError::Vm(VmError::NotFound))?;
        answer.await.map_err(|_| DeleteError::ShuttingDown {
            id: self.id.clone(),
        })?
    }
}
