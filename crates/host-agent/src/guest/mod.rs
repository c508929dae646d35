//! Talking to the agent inside a guest.
//!
//! A [`Transport`] is a way to byte streams into one guest: [`VsockTransport`] where the VMM has
//! vsock, [`SerialTransport`] over one virtio-serial port elsewhere. [`GuestClient`] speaks the
//! control API over either. [`ready`] waits for the one line a guest sends when it serves.
//!
//! Whatever comes from a guest is hostile input: bounded, and parsed before it is believed.

mod attach;
pub mod client;
pub mod ready;
mod serial;
pub mod transport;
mod vsock;

#[cfg(test)]
mod hostile;

pub use attach::AttachedStream;
pub use client::{GuestClient, GuestError};
pub use serial::SerialTransport;
pub use transport::{ChannelError, GuestListener, GuestStream, Transport};
pub use vsock::VsockTransport;
