//! The agents as programs: their start-up messages, and real guests under emulation.
//!
//! Everything runs in network namespaces that the tests make; devices and packet rules of the
//! machine are never touched. Guests need root, `/dev/net/tun`, QEMU, the image
//! (`FUSE_IMAGE_DIR` or the user's cache) and `fc-emulator` beside `fc-agent`; without them the
//! tests say SKIP and why.

#[cfg(test)]
mod agent;
#[cfg(test)]
mod attach;
#[cfg(test)]
mod gpus;
#[cfg(test)]
mod guests;
#[cfg(test)]
mod jailed;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod startup;
#[cfg(test)]
mod wire;
