//! The task that owns a VM.
//!
//! It brings the VM up, then takes one operation after the other and watches the VMM. A create goes
//! on when its caller has left; a delete is legal in every state and ends the task.

use std::sync::Arc;
use std::time::Duration;

use fuse_wire_host::{FailedCreate, VmState, VmView, vm::guest_version};
use tokio::sync::oneshot;

use super::bring_up::{BringUp, Failure, Kind};
use super::error::{
    CreateError, DeleteError, RestoreError, SnapshotError, StepError, SurfaceError, UndoError,
    VmError,
};
use super::host::Host;
use super::journal::{Journal, stop_process};
use super::logs::console_tail;
use super::meta::{Meta, Phase};
use super::timings::Timings;
use super::vm::{Mailbox, Op, Status, Vm};
use super::{restore, snapshot, surface};
use crate::report::chain;
use crate::snapshot::Held;
use crate::vmm::{Process, Sockets};

/// How long a guest that was found running may take to say what it is.
const STATUS_LIMIT: Duration = Duration::from_secs(2);

/// A VM's task.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) host: Arc<Host>,
    pub(super) vm: Arc<Vm>,
    pub(super) meta: Meta,
    pub(super) mailbox: Mailbox,
    pub(super) process: Option<Process>,
}

/// Whether the task goes on after an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Gone,
}

impl Actor {
    /// Brings up a new VM and answers, then serves it.
    pub(super) async fn create(
        mut self,
        seed: Option<Held>,
        timings: Timings,
        reply: oneshot::Sender<Result<VmView, CreateError>>,
    ) {
        let mut journal = Journal::default();
        let brought = self.bring_up(Kind::Create(seed.as_ref()), &mut journal, &timings);
        let brought = brought.await;
        drop(seed);
        match brought {
            Ok(_) => {
                tracing::info!(vm_id = self.meta.vm_id, "vm created");
                self.host.metrics.created(&timings.report());
                let view = VmView {
                    timings_ms: Some(timings.report()),
                    ..self.vm.view()
                };
                let _left = reply.send(Ok(view));
                self.serve().await;
            }
            Err(failure) => self.abandon(journal, failure, &timings, reply).await,
        }
    }

    /// Boots a VM again whose VMM is gone, then serves it.
    pub(super) async fn boot_again(mut self) {
        let timings = Timings::start();
        let mut journal = Journal::default();
        // The stored process is gone, but an earlier cold boot may have been cut short, and two VMMs
        // on one disk would destroy it.
        self.meta.process = None;
        let stopped = match stop_process(&self.host, &self.meta).await {
            // One whose arguments do not name it, as behind a jailer.
            Ok(()) => self.host.empty_group(&self.meta).await,
            failed => failed,
        };
        if let Err(error) = stopped {
            tracing::error!(
                vm_id = self.meta.vm_id,
                error = chain(&error),
                "vm not booted"
            );
            self.enter(VmState::Stopped);
            return self.serve().await;
        }
        if let Err(error) = restore::settle(&self.meta) {
            let vm_id = &self.meta.vm_id;
            tracing::error!(vm_id, error = chain(&error), "vm not booted");
            self.enter(VmState::Stopped);
            return self.serve().await;
        }
        match self.bring_up(Kind::ColdBoot, &mut journal, &timings).await {
            Ok(_) => tracing::info!(vm_id = self.meta.vm_id, "vm booted again"),
            Err(failure) => {
                let error = self.create_error(failure);
                tracing::error!(
                    vm_id = self.meta.vm_id,
                    error = chain(&error),
                    "vm not booted"
                );
                if let Err(error) = journal.undo(&self.host, &self.meta).await {
                    tracing::error!(
                        vm_id = self.meta.vm_id,
                        error = chain(&error),
                        "boot not undone"
                    );
                }
                self.meta.process = None;
                self.enter(VmState::Stopped);
            }
        }
        self.serve().await;
    }

    /// Serves a VM whose VMM was found running.
    pub(super) async fn adopted(mut self, process: Process) {
        tracing::info!(
            vm_id = self.meta.vm_id,
            pid = process.id().pid,
            "vm adopted"
        );
        self.process = Some(process);
        if let Err(error) = restore::clean_up(&self.meta) {
            let vm_id = &self.meta.vm_id;
            tracing::warn!(vm_id, error = chain(&error), "files of a restore are left");
        }
        snapshot::resume_adopted(&self).await;
        self.ask_version().await;
        self.serve().await;
    }

    /// An agent before this one did not note what its guests run.
    async fn ask_version(&mut self) {
        if self.meta.guest_version.is_some() {
            return;
        }
        let said = self.vm.guest.status(STATUS_LIMIT).await;
        let Some(version) = said
            .ok()
            .and_then(|said| guest_version(&said.fused_version))
        else {
            return;
        };
        self.meta.guest_version = Some(version);
        // Not stored: it comes with the next change, or is asked for again.
        self.enter(self.vm.state());
    }

    /// Brings the VM up. Of a resumed guest, returns whether its clock is right.
    pub(super) async fn bring_up(
        &mut self,
        kind: Kind<'_>,
        journal: &mut Journal,
        timings: &Timings,
    ) -> Result<Option<bool>, Failure> {
        let bring_up = BringUp {
            host: &self.host,
            vm: &self.vm,
            meta: &mut self.meta,
            journal,
            timings,
        };
        let up = bring_up.run(kind).await?;
        self.meta.phase = Phase::Ready;
        let saved = timings.measure("commit", self.host.save(&self.meta)).await;
        saved.map_err(|e| Failure::Step(super::bring_up::Step::Ready, StepError::Meta(e)))?;
        self.process = Some(up.process);
        self.enter(VmState::Running);
        Ok(up.clock_synced)
    }

    /// Ends a create that failed: undoes it, answers, and goes, unless something is left.
    async fn abandon(
        self,
        mut journal: Journal,
        failure: Failure,
        timings: &Timings,
        reply: oneshot::Sender<Result<VmView, CreateError>>,
    ) {
        self.host.metrics.create_failed();
        let error = self.create_error(failure);
        tracing::warn!(
            vm_id = self.meta.vm_id,
            error = chain(&error),
            "vm not created"
        );
        self.enter(VmState::Deleting);
        self.host.failures.note(FailedCreate {
            vm_id: self.meta.vm_id.clone(),
            owner: self.meta.spec.owner.clone(),
            failed_at: jiff::Timestamp::now().to_string(),
            error: chain(&error),
            timings_ms: timings.report(),
            console: console_tail(self.vm.log().to_owned()).await,
        });
        let undone = journal.undo(&self.host, &self.meta).await;
        let Err(source) = undone else {
            self.host.tables.forget(&self.meta);
            let _left = reply.send(Err(error));
            self.farewell();
            return;
        };
        let (id, reason) = (self.meta.vm_id.clone(), chain(&error));
        let source = Box::new(source);
        let _left = reply.send(Err(CreateError::Undo { id, reason, source }));
        self.serve().await;
    }

    pub(super) fn create_error(&self, failure: Failure) -> CreateError {
        let id = self.meta.vm_id.clone();
        match failure {
            Failure::Step(step, source) => CreateError::Step {
                id,
                step: step.name(),
                source: Box::new(source),
            },
            Failure::Exists => CreateError::Exists { id },
            Failure::Cancelled => CreateError::Cancelled { id },
            Failure::Busy(waited) => CreateError::Busy { waited },
        }
    }

    /// Takes operations until the VM is gone or the agent shuts down.
    pub(super) async fn serve(mut self) {
        loop {
            let ended = async {
                match &self.process {
                    Some(process) => process.ended().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                op = self.mailbox.ops.recv() => {
                    let Some(op) = op else { return };
                    if self.take(op).await == Next::Gone {
                        return self.farewell();
                    }
                }
                () = ended => {
                    tracing::warn!(vm_id = self.meta.vm_id, "the VMM ended; the vm is stopped");
                    self.process = None;
                    self.enter(VmState::Stopped);
                }
                () = self.host.shutdown.cancelled() => return,
            }
        }
    }

    async fn take(&mut self, op: Op) -> Next {
        match op {
            Op::StartAgent { request, reply } => {
                let _left = reply.send(surface::start(self, *request).await);
                Next::GoOn
            }
            Op::Snapshot { request, reply } => {
                let taken = snapshot::take(self, request).await;
                let pause = taken.as_ref().ok().and_then(|view| view.pause_ms);
                self.host.metrics.snapshot(taken.is_ok(), pause);
                let _left = reply.send(taken);
                Next::GoOn
            }
            Op::Restore { from, reply } => {
                let begun = std::time::Instant::now();
                let restored = restore::run(self, &from).await;
                let metrics = &self.host.metrics;
                metrics.restored(restored.is_ok(), begun.elapsed());
                drop(from);
                let _left = reply.send(restored);
                Next::GoOn
            }
            Op::Delete { reply } => match self.delete().await {
                Ok(()) => {
                    tracing::info!(vm_id = self.meta.vm_id, "vm deleted");
                    self.host.tables.forget(&self.meta);
                    let _left = reply.send(Ok(()));
                    Next::Gone
                }
                Err(source) => {
                    let id = self.meta.vm_id.clone();
                    tracing::error!(vm_id = id, error = chain(&source), "vm not fully removed");
                    let _left = reply.send(Err(DeleteError::Undo { id, source }));
                    Next::GoOn
                }
            },
        }
    }

    async fn delete(&mut self) -> Result<(), UndoError> {
        self.enter(VmState::Deleting);
        self.vm.stop.cancel();
        self.vm.leases.close();
        self.vm.leases.wait().await;
        self.meta.phase = Phase::Deleting;
        // Only for the case that the agent dies meanwhile; a directory that is gone already is fine.
        if let Err(error) = self.host.save(&self.meta).await {
            tracing::debug!(vm_id = self.meta.vm_id, %error, "delete not written down");
        }
        Journal::all().undo(&self.host, &self.meta).await?;
        self.process = None;
        Ok(())
    }

    /// Answers what still waits: the VM is gone.
    fn farewell(mut self) {
        self.mailbox.ops.close();
        while let Ok(op) = self.mailbox.ops.try_recv() {
            match op {
                Op::Delete { reply } => {
                    let _left = reply.send(Ok(()));
                }
                Op::StartAgent { reply, .. } => {
                    let _left = reply.send(Err(SurfaceError::Vm(VmError::NotFound)));
                }
                Op::Snapshot { reply, .. } => {
                    let _left = reply.send(Err(SnapshotError::Vm(VmError::NotFound)));
                }
                Op::Restore { reply, .. } => {
                    let _left = reply.send(Err(RestoreError::Vm(VmError::NotFound)));
                }
            }
        }
    }

    /// Where the VMM's sockets are.
    pub(super) fn sockets(&self) -> Sockets {
        let dir = self.host.metas.dir(&self.meta.vm_id);
        self.host.vmm.sockets(&self.meta.vm_id, &dir)
    }

    pub(super) fn enter(&self, state: VmState) {
        let status = Status::of(&self.meta, state);
        self.mailbox.status.send_replace(status);
    }
}
