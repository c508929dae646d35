//! The contract between a host agent and the agent inside a guest, and the
//! code that both ends share to speak it.
//!
//! The control API is HTTP/1.1 with JSON bodies ([`control`]) on
//! [`CONTROL_PORT`]. It runs over vsock where the VMM has it ([`vsock`]) and
//! otherwise over one virtio-serial port, multiplexed ([`mux`]). The host tells
//! the guest who it is on the kernel command line ([`boot`]); the guest reports
//! that it serves by one [`Ready`] line on [`READY_PORT`].
//!
//! Guest agents live on inside snapshots, so a host may meet an agent older
//! than itself. Messages are therefore append-only: fields are added as
//! optional, never renamed or removed, and unknown fields are ignored. A change
//! that cannot be made that way raises [`GENERATION`].

pub mod boot;
pub mod control;
pub mod mux;
pub mod snapshot;
pub mod vsock;

mod blob;

pub use blob::Blob;
pub use boot::BootParams;
pub use control::Ready;
pub use mux::{Mux, MuxStream, Role};

/// Generation of this contract. Both ends state theirs; the lower one is spoken.
pub const GENERATION: u32 = 1;

/// Port of the control API; the guest listens.
pub const CONTROL_PORT: u32 = 1024;

/// Port of the ready signal; the host listens, the guest dials once per boot.
pub const READY_PORT: u32 = 1025;

/// Name of the virtio-serial port that carries [`mux`] streams.
pub const SERIAL_PORT_NAME: &str = "org.fuse.control";
