//! The task that owns a VM.
//!
//! It brings the VM up, then takes one operation after the other and watches the VMM. A create goes
//! on when its caller has left; a delete is legal in every state and ends the task.

use std::sync::Arc;

use fuse_wire_host::name::{MAX_ID_LEN, vm_id};
use fuse_wire_host::{CreateVmRequest, VmState, VmView};
use tokio::sync::oneshot;

use super::bring_up::{BringUp, Failure, Kind};
use super::error::{CreateError, DeleteError, SpecError, SurfaceError, UndoError, VmError};
use super::host::Host;
use super::journal::{Journal, stop_process};
use super::meta::{Disks, Meta, Phase, Spec};
use super::timings::Timings;
use super::vm::{Mailbox, Op, Status, Vm};
use super::{error::StepError, surface};
use crate::disk::overlay::MAX_GIB;
use crate::disk::{BaseImage, space};
use crate::report::chain;
use crate::vmm::Process;

/// Least memory of a VM in MiB: the kernel, the initramfs and the guest agent's own share.
const MIN_MEMORY_MIB: u32 = 128;
/// Most memory of a VM in MiB (4 TiB).
const MAX_MEMORY_MIB: u32 = 4 * 1024 * 1024;

/// Checks a request, takes an id and a number, and waits for the VM's task to bring it up.
pub(super) async fn create(
    host: &Arc<Host>,
    request: CreateVmRequest,
) -> Result<VmView, CreateError> {
    let timings = Timings::start();
    let spec = check(host, request)?;
    let id = vm_id(&spec.name);
    space::ensure_free(host.disk_dir(), host.config.vms.min_free_mib)
        .map_err(CreateError::Space)?;
    let (images, image) = (Arc::clone(&host.images), spec.image.clone());
    let base = tokio::task::spawn_blocking(move || images.resolve(image.as_deref())).await;
    let base = base
        .map_err(|_| CreateError::Lost { id: id.clone() })?
        .map_err(CreateError::Image)?;
    timings.note_since_start("image");
    let actor = host.tables.reserve(&id, &host.config.net.plan, |index| {
        let meta = meta(host, &id, spec, host.config.net.plan.slot(index), base);
        let (vm, mailbox) = Vm::new(host, &meta, VmState::Creating);
        let actor = Actor {
            host: Arc::clone(host),
            vm: Arc::clone(&vm),
            meta,
            mailbox,
            process: None,
        };
        (vm, actor)
    })?;
    let (reply, answer) = oneshot::channel();
    host.tasks.spawn(actor.create(timings, reply));
    answer.await.map_err(|_| CreateError::Lost { id })?
}

fn check(host: &Host, request: CreateVmRequest) -> Result<Spec, CreateError> {
    let vms = &host.config.vms;
    let given = |value: Option<u32>, default: u32| value.filter(|v| *v > 0).unwrap_or(default);
    let text = |value: Option<String>| value.filter(|v| !v.trim().is_empty());
    let fresh = || format!("vm-{:08x}", rand::random::<u32>());
    let spec = Spec {
        name: text(request.name).unwrap_or_else(fresh),
        cpus: given(request.cpus, 1),
        memory_mb: given(request.memory_mb, vms.memory_mib),
        storage_gb: given(request.storage_gb, vms.storage_gib),
        region: request.region.unwrap_or_default(),
        image: request.image.filter(|image| !image.is_empty()),
        owner: text(request.owner),
    };
    let id = vm_id(&spec.name);
    if id.len() > MAX_ID_LEN {
        return Err(CreateError::Spec(SpecError::NameTooLong {
            id,
            max: MAX_ID_LEN,
        }));
    }
    for (field, value, min, max) in [
        ("cpus", spec.cpus, 1, host.vmm.limits().max_cpus),
        ("memory_mb", spec.memory_mb, MIN_MEMORY_MIB, MAX_MEMORY_MIB),
        ("storage_gb", spec.storage_gb, 1, MAX_GIB),
    ] {
        if value < min || value > max {
            return Err(CreateError::Spec(SpecError::Range {
                field,
                min,
                max,
                value,
            }));
        }
    }
    Ok(spec)
}

fn meta(host: &Host, id: &str, spec: Spec, slot: crate::net::Slot, base: BaseImage) -> Meta {
    let dir = host.metas.dir(id);
    Meta {
        vm_id: id.to_owned(),
        phase: Phase::Creating,
        spec,
        slot,
        disks: Disks {
            rootfs: base.path,
            image_digest: base.digest,
            overlay: dir.join("overlay.img"),
        },
        created_at: jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string(),
        process: None,
        boot_id: None,
        sock: host.vmm.sockets(id, &dir).api,
        surface_published: false,
        expose_endpoints: Vec::new(),
    }
}

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
    async fn create(
        mut self,
        timings: Timings,
        reply: oneshot::Sender<Result<VmView, CreateError>>,
    ) {
        let mut journal = Journal::default();
        match self.bring_up(Kind::Create, &mut journal, &timings).await {
            Ok(()) => {
                tracing::info!(vm_id = self.meta.vm_id, "vm created");
                let view = VmView {
                    timings_ms: Some(timings.report()),
                    ..self.vm.view()
                };
                let _left = reply.send(Ok(view));
                self.serve().await;
            }
            Err(failure) => self.abandon(journal, failure, reply).await,
        }
    }

    /// Boots a VM again whose VMM is gone, then serves it.
    pub(super) async fn boot_again(mut self) {
        let timings = Timings::start();
        let mut journal = Journal::default();
        // The stored process is gone, but an earlier cold boot may have been cut short, and two VMMs
        // on one disk would destroy it.
        self.meta.process = None;
        if let Err(error) = stop_process(&self.host, &self.meta).await {
            tracing::error!(
                vm_id = self.meta.vm_id,
                error = chain(&error),
                "vm not booted"
            );
            self.enter(VmState::Stopped);
            return self.serve().await;
        }
        match self.bring_up(Kind::ColdBoot, &mut journal, &timings).await {
            Ok(()) => tracing::info!(vm_id = self.meta.vm_id, "vm booted again"),
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
        self.serve().await;
    }

    async fn bring_up(
        &mut self,
        kind: Kind,
        journal: &mut Journal,
        timings: &Timings,
    ) -> Result<(), Failure> {
        let bring_up = BringUp {
            host: &self.host,
            vm: &self.vm,
            meta: &mut self.meta,
            journal,
            timings,
        };
        let process = bring_up.run(kind).await?;
        self.meta.phase = Phase::Ready;
        let saved = timings.measure("commit", self.host.save(&self.meta)).await;
        saved.map_err(|e| Failure::Step(super::bring_up::Step::Ready, StepError::Meta(e)))?;
        self.process = Some(process);
        self.enter(VmState::Running);
        Ok(())
    }

    /// Ends a create that failed: undoes it, answers, and goes, unless something is left.
    async fn abandon(
        self,
        mut journal: Journal,
        failure: Failure,
        reply: oneshot::Sender<Result<VmView, CreateError>>,
    ) {
        let error = self.create_error(failure);
        tracing::warn!(
            vm_id = self.meta.vm_id,
            error = chain(&error),
            "vm not created"
        );
        self.enter(VmState::Deleting);
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

    fn create_error(&self, failure: Failure) -> CreateError {
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
            }
        }
    }

    fn enter(&self, state: VmState) {
        let boot_id = self.meta.boot_id.clone();
        self.mailbox.status.send_replace(Status { state, boot_id });
    }
}
