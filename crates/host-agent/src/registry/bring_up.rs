//! Bringing a VM up: from nothing to a guest that answers.
//!
//! ```text
//! directory ┬─> spawn ─> open ─┬─> configure ─> turn ─> start ─> boot
//!           ├─> disk ──────────┤
//!           ├─> tap ───────────┤
//!           └─> rules ─────────┘
//! ```
//!
//! A VMM that is told the whole machine when it starts is spawned after what the machine is made of.
//! Steps side by side are those that do not need each other. A create runs them all; a cold boot of
//! a VM whose VMM is gone needs no directory and no disk. Between steps, and wherever it waits, the bring-up
//! stops when the VM is deleted or the agent shuts down. It never drops a step half-way, so the
//! journal is always right about what there is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fuse_wire_guest::{READY_PORT, Ready};
use fuse_wire_host::limits::BOOT_QUEUE_LIMIT;
use fuse_wire_host::vm::guest_version;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::clock;
use super::error::StepError;
use super::host::Host;
use super::journal::{Journal, Undo, When, remove_sockets};
use super::meta::Meta;
use super::timings::{self, Timings};
use super::vm::Vm;
use crate::fail_point::place;
use crate::guest::ready::{self, ReadyError};
use crate::guest::{GuestClient, GuestError};
use crate::report::chain;
use crate::snapshot::Held;
use crate::vmm::process::log_tail;
use crate::vmm::{MachineSpec, Process, ProcessId, VmmError};

/// How long a resumed guest may take to answer.
const RESUME_LIMIT: Duration = Duration::from_secs(30);
/// Pause between two tries to reach it: there is no event for it.
const RESUME_PAUSE: Duration = Duration::from_millis(20);
/// Bound of giving a booted guest its seed.
const SEED_LIMIT: Duration = Duration::from_secs(2);

/// A step of a bring-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Directory,
    Disk,
    Tap,
    Rules,
    Spawn,
    Open,
    Configure,
    Load,
    Boot,
    Ready,
}

impl Step {
    #[cfg(test)]
    pub(super) const ALL: [Self; 9] = [
        Self::Directory,
        Self::Disk,
        Self::Tap,
        Self::Rules,
        Self::Spawn,
        Self::Open,
        Self::Configure,
        Self::Boot,
        Self::Ready,
    ];

    /// Its name in errors and timings.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Disk => "disk",
            Self::Tap => "tap",
            Self::Rules => "rules",
            Self::Spawn => "spawn",
            Self::Open => "open",
            Self::Configure => "configure",
            Self::Load => "load",
            Self::Boot => "start",
            Self::Ready => "boot",
        }
    }
}

/// Why a bring-up ended early.
#[derive(Debug)]
pub(super) enum Failure {
    Step(Step, StepError),
    Exists,
    Cancelled,
    Busy(Duration),
}

/// What there is of the VM, and what it begins with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind<'a> {
    /// Nothing of it exists. Its disk is new, or a copy of a snapshot's.
    Create(Option<&'a Held>),
    /// Its directory and disk exist; nothing waits for it, so it may wait for its turn.
    ColdBoot,
    /// As before, and somebody waits.
    Boot,
    /// Its directory and disk exist, and it goes on with a memory that was saved.
    Resume(&'a Held),
}

/// A machine that is up.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) process: Process,
    /// Of a resumed guest: whether it has taken the time it was told.
    pub(super) clock_synced: Option<bool>,
}

/// One bring-up under way.
#[derive(Debug)]
pub(super) struct BringUp<'a> {
    pub(super) host: &'a Arc<Host>,
    pub(super) vm: &'a Arc<Vm>,
    pub(super) meta: &'a mut Meta,
    pub(super) journal: &'a mut Journal,
    pub(super) timings: &'a Timings,
}

impl BringUp<'_> {
    /// Runs all steps. The VMM's identity is in the meta as soon as there is one, but not stored.
    pub(super) async fn run(mut self, kind: Kind<'_>) -> Result<Up, Failure> {
        let spec = self
            .host
            .machine(self.meta)
            .map_err(|e| Failure::Step(Step::Configure, e))?;
        let host_work = Instant::now();
        if let Kind::Create(_) = kind {
            self.directory().await?;
        }
        // All that the steps from here on may leave; the VMM is the first to be undone.
        for undo in [
            Undo::Sockets,
            Undo::Tap,
            Undo::Rules,
            Undo::Group,
            Undo::Process,
        ] {
            self.journal.will(undo);
        }
        let process = self.parts(kind, &spec).await?;
        if let Kind::Resume(from) = kind {
            let clock_synced = Some(self.load(&spec, &process, from).await?);
            self.meta.boot_id.clone_from(&from.stored().boot_id);
            let version = &from.stored().guest_version;
            self.meta.guest_version.clone_from(version);
            return Ok(Up {
                process,
                clock_synced,
            });
        }
        self.check(Step::Configure, When::Before)?;
        let configure = async { Ok(self.host.vmm.configure(&spec, &process).await?) };
        self.step(Step::Configure, configure).await?;
        self.timings.note(timings::HOST, host_work.elapsed());
        let turn = self.turn(kind).await?;
        let ready = self.boot(&spec, &process).await?;
        drop(turn);
        self.meta.guest_version = guest_version(&ready.fused_version);
        self.meta.boot_id = Some(ready.boot_id);
        self.seed().await;
        Ok(Up {
            process,
            clock_synced: None,
        })
    }

    async fn directory(&mut self) -> Result<(), Failure> {
        self.check(Step::Directory, When::Before)?;
        // A directory that is there is not this VM's, and must not be undone with it.
        if self.host.metas.dir(&self.meta.vm_id).exists() {
            return Err(Failure::Exists);
        }
        self.journal.will(Undo::Directory);
        self.journal.will(Undo::Gpus);
        let (metas, meta) = (Arc::clone(&self.host.metas), self.meta.clone());
        let work = async { Ok(tokio::task::spawn_blocking(move || metas.create(&meta)).await??) };
        self.step(Step::Directory, work).await
    }

    /// Makes what the machine is made of and starts the VMM, side by side where that is possible. All
    /// of it ends before the first failure is returned.
    async fn parts(&mut self, kind: Kind<'_>, spec: &MachineSpec) -> Result<Process, Failure> {
        if self.host.vmm.limits().told_at_start {
            self.side_by_side(kind).await?;
            let (id, process) = self.vmm(spec).await;
            self.meta.process = id;
            return process;
        }
        // The last is what keeps this thread busy: the others are on their way by then.
        let (made, (id, process)) = tokio::join!(self.side_by_side(kind), self.vmm(spec));
        self.meta.process = id;
        made.and(process)
    }

    /// Starts the VMM, and waits until it can be told something. A process that was started is named
    /// whatever happens then.
    async fn vmm(&self, spec: &MachineSpec) -> (Option<ProcessId>, Result<Process, Failure>) {
        let id = match self.spawn(spec) {
            Ok(id) => id,
            Err(failure) => return (None, Err(failure)),
        };
        let open = async {
            let process = self.watch(spec, id)?;
            self.open(spec, &process).await?;
            Ok(process)
        };
        (Some(id), open.await)
    }

    fn spawn(&self, spec: &MachineSpec) -> Result<ProcessId, Failure> {
        self.check(Step::Spawn, When::Before)?;
        let begun = Instant::now();
        let failed = |error: StepError| Failure::Step(Step::Spawn, error);
        if let Err(error) = remove_sockets(self.host, &spec.vm_id) {
            tracing::warn!(vm_id = spec.vm_id, %error, "a socket is in the way");
        }
        let limits = self.host.limits(self.meta);
        let made = self.host.cgroups.make(&spec.vm_id, &limits);
        made.map_err(|e| failed(e.into()))?;
        place("group");
        let id = self.host.vmm.spawn(spec).map_err(|e| failed(e.into()))?;
        self.timings.note(Step::Spawn.name(), begun.elapsed());
        Ok(id)
    }

    fn watch(&self, spec: &MachineSpec, id: ProcessId) -> Result<Process, Failure> {
        self.check(Step::Spawn, When::After)?;
        let failed = |error: VmmError| Failure::Step(Step::Spawn, error.into());
        let pid = id.pid;
        let found = Process::find(id).map_err(|source| failed(VmmError::Watch { pid, source }))?;
        found.ok_or_else(|| {
            let (during, log) = ("its start", log_tail(&spec.log));
            failed(VmmError::Ended { during, log })
        })
    }

    /// Waits until the VMM can be told something.
    async fn open(&self, spec: &MachineSpec, process: &Process) -> Result<(), Failure> {
        self.check(Step::Open, When::Before)?;
        let open = async { Ok(self.host.vmm.open(spec, process).await?) };
        self.step(Step::Open, open).await
    }

    /// What neither depends on each other nor on the VMM.
    async fn side_by_side(&self, kind: Kind<'_>) -> Result<(), Failure> {
        for step in [Step::Disk, Step::Tap, Step::Rules] {
            self.check(step, When::Before)?;
        }
        let (overlays, to) = (
            Arc::clone(&self.host.overlays),
            self.meta.disks.overlay.clone(),
        );
        let gib = self.meta.spec.storage_gb;
        let disk = async {
            match kind {
                Kind::ColdBoot | Kind::Boot | Kind::Resume(_) => Ok(()),
                Kind::Create(None) => {
                    Ok(tokio::task::spawn_blocking(move || overlays.create(&to, gib)).await??)
                }
                Kind::Create(Some(seed)) => {
                    let from = seed.files().overlay();
                    let copy = move || overlays.create_from(&from, &to, gib);
                    Ok(tokio::task::spawn_blocking(copy).await??)
                }
            }
        };
        let binding = self.host.binding(self.meta);
        let user = self.host.vmm.user(self.meta.slot.index);
        let tap = async { Ok(self.host.links.create(&self.meta.slot, user).await?) };
        let rules = async { Ok(self.host.firewall.set(binding).await?) };
        let (disk, tap, rules) = tokio::join!(
            self.step(Step::Disk, disk),
            self.step(Step::Tap, tap),
            self.step(Step::Rules, rules),
        );
        disk.and(tap).and(rules)
    }

    /// Waits for a turn to boot.
    async fn turn(&self, kind: Kind<'_>) -> Result<SemaphorePermit<'_>, Failure> {
        let begun = Instant::now();
        let turn = async {
            let turn = self.host.boot_turns.acquire();
            let turn = match kind {
                Kind::Create(_) | Kind::Boot => timeout(BOOT_QUEUE_LIMIT, turn)
                    .await
                    .map_err(|_| Failure::Busy(BOOT_QUEUE_LIMIT))?,
                Kind::ColdBoot | Kind::Resume(_) => turn.await,
            };
            turn.map_err(|_| Failure::Cancelled)
        };
        let turn = tokio::select! {
            turn = turn => turn,
            () = self.cancelled() => Err(Failure::Cancelled),
        };
        self.timings.note(timings::QUEUED, begun.elapsed());
        turn
    }

    /// Starts the machine and waits for what the guest says of itself.
    async fn boot(&self, spec: &MachineSpec, process: &Process) -> Result<Ready, Failure> {
        let begun = Instant::now();
        let transport = self.host.vmm.transport(&spec.sockets);
        self.check(Step::Boot, When::Before)?;
        let start = async {
            // Before the guest can dial.
            let listener = transport.listen(READY_PORT).await?;
            self.host.vmm.boot(spec).await?;
            Ok(listener)
        };
        let mut listener = self.step(Step::Boot, start).await?;
        self.check(Step::Ready, When::Before)?;
        let limit = self.host.config.vms.boot_limit;
        let ready = async {
            tokio::select! {
                ready = ready::wait(listener.as_mut(), &spec.vm_id) => ready.map_err(|e| self.explain(e)),
                () = process.ended() => {
                    Err(VmmError::Ended { during: "the boot", log: log_tail(&spec.log) }.into())
                }
            }
        };
        let ready = within(limit, spec, ready);
        let ready = tokio::select! {
            ready = self.step(Step::Ready, ready) => ready?,
            () = self.cancelled() => return Err(Failure::Cancelled),
        };
        self.timings.note(timings::BOOT, begun.elapsed());
        tracing::debug!(
            vm_id = spec.vm_id,
            fused = ready.fused_version,
            "guest answers"
        );
        Ok(ready)
    }

    /// Makes the program the machine that was saved, and waits until its guest answers. The host is
    /// told nothing by the guest: it does not know that it was away.
    async fn load(
        &self,
        spec: &MachineSpec,
        process: &Process,
        from: &Held,
    ) -> Result<bool, Failure> {
        self.check(Step::Load, When::Before)?;
        let files = from.files();
        let load = async { Ok(self.host.vmm.load(spec, process, &files).await?) };
        tokio::select! {
            loaded = self.step(Step::Load, load) => loaded?,
            () = self.cancelled() => return Err(Failure::Cancelled),
        }
        self.check(Step::Ready, When::Before)?;
        let guest = &self.vm.guest;
        let ready = async {
            tokio::select! {
                answer = resumed(guest) => Ok(answer),
                () = process.ended() => {
                    Err(VmmError::Ended { during: "the resume", log: log_tail(&spec.log) }.into())
                }
            }
        };
        let ready = within(RESUME_LIMIT, spec, ready);
        tokio::select! {
            ready = self.step(Step::Ready, ready) => ready,
            () = self.cancelled() => Err(Failure::Cancelled),
        }
    }

    /// Guests that begin with the same disk must not go on with the same random numbers, and a
    /// machine's own clock knows whole seconds at best.
    async fn seed(&self) {
        let begun = Instant::now();
        let seeded = match self.vm.guest.seed(SEED_LIMIT).await {
            Ok(()) => clock::correct(&self.vm.guest, begun).await,
            error => error,
        };
        if let Err(error) = seeded {
            let vm_id = &self.meta.vm_id;
            tracing::debug!(vm_id, error = chain(&error), "guest not given a seed");
            clock::set_soon(self.host, self.vm).await;
        }
    }

    /// Names the image that is at fault.
    fn explain(&self, error: ReadyError) -> StepError {
        match error {
            ReadyError::Unusable { reason } => {
                let default =
                    || format!("the base image {}", self.host.config.paths.base.display());
                let image = self.meta.spec.image.as_ref();
                let image = image.map_or_else(default, |name| format!("image {name:?}"));
                StepError::Unusable { image, reason }
            }
            error => StepError::Ready(error),
        }
    }

    async fn step<T>(
        &self,
        step: Step,
        work: impl Future<Output = Result<T, StepError>>,
    ) -> Result<T, Failure> {
        let done = self.timings.measure(step.name(), work).await;
        let value = done.map_err(|error| Failure::Step(step, error))?;
        self.check(step, When::After)?;
        Ok(value)
    }

    /// Whether to go on.
    #[cfg_attr(
        not(test),
        expect(unused_variables, reason = "tests inject failures by moment")
    )]
    fn check(&self, step: Step, when: When) -> Result<(), Failure> {
        place(step.name());
        if self.vm.stop.is_cancelled() || self.host.shutdown.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        #[cfg(test)]
        if *self.host.faults.lock().unwrap() == Some((step, when)) {
            return Err(Failure::Step(step, StepError::Injected));
        }
        Ok(())
    }

    async fn cancelled(&self) {
        tokio::select! {
            () = self.vm.stop.cancelled() => {}
            () = self.host.shutdown.cancelled() => {}
        }
    }
}

/// Gives up on a guest that does not answer in time.
async fn within<T>(
    limit: Duration,
    spec: &MachineSpec,
    ready: impl Future<Output = Result<T, StepError>>,
) -> Result<T, StepError> {
    timeout(limit, ready).await.unwrap_or_else(|_| {
        Err(StepError::BootTimeout {
            limit,
            log: log_tail(&spec.log),
        })
    })
}

/// Tells a resumed guest what time it is, until it has heard it. One that is too old to be told sets
/// its clock all the same. Returns whether it did.
async fn resumed(guest: &GuestClient) -> bool {
    loop {
        let begun = Instant::now();
        match guest.resumed(RESUME_LIMIT).await {
            Ok(()) => return clock::correct(guest, begun).await.is_ok(),
            Err(GuestError::Refused { .. } | GuestError::Failed { .. }) => {
                let set = clock::set(guest).await;
                if let Err(error) = &set {
                    tracing::warn!(error = chain(error), "a resumed guest keeps its old clock");
                }
                return set.is_ok();
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), "a resumed guest does not answer yet");
                tokio::time::sleep(RESUME_PAUSE).await;
            }
        }
    }
}
