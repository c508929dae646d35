//! The vsock device: Firecracker's Unix sockets on the host's side, multiplexed
//! streams over a virtio-serial port on the guest's.

mod bridge;
mod listener;

#[cfg(test)]
mod tests;

pub(crate) use bridge::Bridge;
pub(crate) use listener::Listener;
