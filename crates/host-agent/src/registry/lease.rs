//! The shared right to use a VM's guest.
//!
//! Commands and uploads run side by side and never hold up the VM's task. A delete cancels all
//! leases and waits for their end before it touches anything.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fuse_wire_guest::control;
use fuse_wire_host::{
    ExecRequest, ExecResponse, FileUpload, UploadRequest, VmState, attach, limits,
};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::error::LeaseError;
use super::vm::Vm;
use crate::guest::{AttachedStream, GuestClient, GuestError};
use crate::vmm::process::log_tail;

/// Leases of one VM at a time.
pub(super) const MAX_LEASES: usize = 64;
/// How long a broken channel may take to turn out to be an ended VMM.
const DEATH_NOTICE: Duration = Duration::from_secs(1);

/// Bytes of files that travel as JSON in one call; a guest may have little memory.
const SMALL_FILES: usize = 1024 * 1024;

/// The right to use a guest. Dropping it, or the future of a call, ends what runs.
#[derive(Debug)]
pub struct Lease {
    vm: Arc<Vm>,
    _slot: OwnedSemaphorePermit,
    _counted: TaskTrackerToken,
}

pub(super) fn take(vm: &Arc<Vm>) -> Result<Lease, LeaseError> {
    let id = || vm.id.clone();
    let slot = Arc::clone(&vm.lease_slots)
        .try_acquire_owned()
        .map_err(|_| LeaseError::Busy {
            id: id(),
            max: MAX_LEASES,
        })?;
    // Counted before the state is read: a delete that starts now waits for this lease.
    let counted = vm.leases.token();
    if vm.stop.is_cancelled() {
        return Err(LeaseError::Deleted { id: id() });
    }
    match vm.state() {
        VmState::Running => Ok(Lease {
            vm: Arc::clone(vm),
            _slot: slot,
            _counted: counted,
        }),
        VmState::Creating | VmState::Booting => Err(LeaseError::Booting { id: id() }),
        VmState::Deleting => Err(LeaseError::Deleted { id: id() }),
        VmState::Stopped | VmState::Unknown => Err(stopped(vm)),
    }
}

/// Small files travel together, large ones alone and raw; all in the order given.
async fn write_files(guest: &GuestClient, files: Vec<FileUpload>) -> Result<(), GuestError> {
    let write = async {
        let mut batch = Vec::new();
        let mut room = SMALL_FILES;
        for file in files {
            let size = file.content.len();
            if size > room {
                send_batch(guest, &mut batch).await?;
                room = SMALL_FILES;
            }
            if size > SMALL_FILES {
                let FileUpload {
                    path,
                    mode,
                    content,
                } = file;
                let limit = limits::UPLOAD_LIMIT;
                guest
                    .upload_raw(&path, mode.as_deref(), content, limit)
                    .await?;
            } else {
                room -= size;
                batch.push(wire_file(file));
            }
        }
        send_batch(guest, &mut batch).await
    };
    // The bound is for all parts together.
    let limit = limits::UPLOAD_LIMIT;
    tokio::time::timeout(limit, write)
        .await
        .unwrap_or(Err(GuestError::Timeout(limit)))
}

async fn send_batch(
    guest: &GuestClient,
    batch: &mut Vec<control::UploadFile>,
) -> Result<(), GuestError> {
    if batch.is_empty() {
        return Ok(());
    }
    let request = control::UploadRequest {
        files: std::mem::take(batch),
    };
    guest.upload(&request, limits::UPLOAD_LIMIT).await.map(drop)
}

fn wire_file(file: FileUpload) -> control::UploadFile {
    control::UploadFile {
        path: file.path,
        mode: file.mode,
        content_b64: file.content.into(),
    }
}

fn stopped(vm: &Vm) -> LeaseError {
    LeaseError::Stopped {
        id: vm.id.clone(),
        log: log_tail(vm.log()),
    }
}

/// Why a guest that ran does not any more.
fn lost(vm: &Vm) -> LeaseError {
    match vm.state() {
        VmState::Booting => LeaseError::Restored { id: vm.id.clone() },
        _ => stopped(vm),
    }
}

impl Lease {
    /// Runs a command in the guest to its end.
    ///
    /// # Errors
    /// The guest cannot be used, or stops being usable meanwhile. A command that fails or times out
    /// is not an error.
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecResponse, LeaseError> {
        let limit = request.limit();
        let request = control::ExecRequest {
            cmd: request.cmd,
            env: request.env.unwrap_or_default(),
            cwd: request.cwd,
            stdin_b64: None,
            timeout_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
            max_output_bytes: None,
        };
        let done = self.run(self.vm.guest.exec(&request)).await?;
        Ok(ExecResponse {
            exit_code: done.exit_code,
            stdout: done.stdout_b64.0,
            stderr: done.stderr_b64.0,
            timed_out: done.timed_out,
            signal: done.signal,
            stdout_truncated: done.stdout_truncated,
            stderr_truncated: done.stderr_truncated,
            duration_ms: done.duration_ms,
        })
    }

    /// Writes files in the guest, in order.
    ///
    /// # Errors
    /// The guest cannot be used or refuses a file; files before that one are written.
    pub async fn upload(&self, request: UploadRequest) -> Result<(), LeaseError> {
        let write = write_files(&self.vm.guest, request.files);
        self.run(write).await
    }

    /// Starts a command whose streams are the connection's.
    ///
    /// # Errors
    /// The guest cannot be used or refuses the command.
    pub async fn attach(&self, request: &attach::Request) -> Result<AttachedStream, LeaseError> {
        self.run(self.vm.guest.attach(request, limits::ATTACH_LIMIT))
            .await
    }

    /// What the guest agent has logged since the boot, and for a follower what it logs.
    ///
    /// # Errors
    /// The guest cannot be used, or its agent is too old to say.
    pub(super) async fn log(&self, follow: bool) -> Result<Incoming, LeaseError> {
        self.run(self.vm.guest.log(follow, limits::READ_LIMIT))
            .await
    }

    /// Resolves when the guest cannot be used any more.
    pub async fn over(&self) {
        tokio::select! {
            () = self.vm.stop.cancelled() => {}
            () = self.vm.not_running() => {}
        }
    }

    async fn run<T>(
        &self,
        call: impl Future<Output = Result<T, GuestError>>,
    ) -> Result<T, LeaseError> {
        tokio::select! {
            biased;
            () = self.vm.stop.cancelled() => {
                Err(LeaseError::Deleted { id: self.vm.id.clone() })
            }
            result = call => match result {
                Ok(value) => Ok(value),
                Err(error) => Err(self.explain(error).await),
            },
            () = self.vm.not_running() => Err(lost(&self.vm)),
        }
    }

    /// A VMM that ends breaks the channel first and is noticed a moment later.
    async fn explain(&self, error: GuestError) -> LeaseError {
        let broken = matches!(error, GuestError::Channel(_));
        if broken
            && tokio::time::timeout(DEATH_NOTICE, self.vm.not_running())
                .await
                .is_ok()
        {
            return lost(&self.vm);
        }
        LeaseError::Guest(error)
    }
}
