//! The control API: what the host asks of its guest.
//!
//! ```text
//! transport (vsock | serial + mux) -> HTTP/1.1 -> routes -> exec, files, clock, surface, snapshot, log, power
//! ```
//!
//! Only the host reaches it, so there is no authentication. It must answer
//! whatever users do to the guest: nothing here waits for a disk, a terminal or
//! a user's process, except in the call that asks for it.

mod attach;
mod body;
mod error;
mod log;
mod ready;
mod routes;
mod serial;
mod snapshot;
mod transport;

#[cfg(test)]
mod tests;

pub(crate) use ready::announce;
pub(crate) use routes::router;
pub(crate) use transport::Transports;

use std::sync::Arc;

use fuse_wire_guest::control::{PowerAction, Ready, Status, SurfaceStatus};
use rustix::time::ClockId;
use tokio::sync::{Semaphore, mpsc};

use crate::exec::Executor;
use crate::freeze::Freezer;
use crate::surface::supervise::Supervisor;

/// What is known about this guest and never changes while it runs.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) vm_id: String,
    pub(crate) boot_id: String,
    /// Why the guest is not usable.
    pub(crate) error: Option<String>,
}

/// Everything that a request may need.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) identity: Identity,
    pub(crate) executor: Executor,
    pub(crate) surface: Supervisor,
    pub(crate) freezer: Arc<Freezer>,
    /// Memory for request bodies, in KiB.
    pub(crate) bodies: Arc<Semaphore>,
    /// Tells PID 1 to go down.
    pub(crate) power: mpsc::Sender<PowerAction>,
}

impl Identity {
    pub(crate) fn ready(&self) -> Ready {
        Ready {
            generation: fuse_wire_guest::GENERATION,
            fused_version: crate::VERSION.to_owned(),
            vm_id: self.vm_id.clone(),
            boot_id: self.boot_id.clone(),
            error: self.error.clone(),
        }
    }

    fn status(&self, surface: SurfaceStatus) -> Status {
        let uptime = rustix::time::clock_gettime(ClockId::Boottime);
        let millis = uptime.tv_sec * 1000 + uptime.tv_nsec / 1_000_000;
        Status {
            generation: fuse_wire_guest::GENERATION,
            fused_version: crate::VERSION.to_owned(),
            vm_id: self.vm_id.clone(),
            boot_id: self.boot_id.clone(),
            uptime_ms: millis.try_into().unwrap_or(0),
            error: self.error.clone(),
            surface,
        }
    }
}
