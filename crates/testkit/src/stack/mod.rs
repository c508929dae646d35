//! A whole Fuse on this machine: orchestrator, `fc-agent`, `fc-emulator`, in a [`Slot`] of its own.
//!
//! The programs run as a user would run them, with nothing but their documented configuration. [`Stack::teardown`]
//! must be called: it destroys what runs, stops the programs in an orderly way, and fails when anything is left.

mod parts;
mod programs;
mod teardown;
mod vms;

pub use parts::{Database, Part, Stack, StackOptions};
pub use vms::{VmRecord, boot_permit};
