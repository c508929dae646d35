//! Test support: real programs, real guests, real databases, and proof that nothing is left behind.
//!
//! Development only; no shipped program depends on it. The pieces:
//! - [`Stack`] starts orchestrator, `fc-agent` and `fc-emulator` from the build's own target directory, on a network
//!   [`slot`] of their own, so that stacks run side by side and beside a user's local stack;
//! - [`Guest`] and [`Api`] talk to them over plain HTTP, deliberately not through the product's client code;
//! - [`Fuse`] runs the CLI with a home directory of its own;
//! - [`gpu_tree`] is a host with GPUs, of files;
//! - [`leftovers`] lists (and removes) what a stack may leave on a machine; [`scan`] searches for secrets;
//! - [`skip!`](crate::skip!) reports a test that cannot run here, in one uniform line.
//!
//! Callers: the end-to-end suites (`crates/e2e`), the benchmarks (`crates/bench`), and other crates' own tests.

mod api;
mod bins;
mod cli;
mod daemon;
pub mod fake_agent;
pub mod gpu_tree;
mod guest;
pub mod leftovers;
pub mod outside;
pub mod postgres;
pub mod scan;
mod skip;
pub mod slot;
mod stack;
mod wait;

pub use api::{Api, Events, Reply};
pub use bins::{Bins, Image, Release};
pub use cli::{Fuse, Run};
pub use daemon::Daemon;
pub use guest::{ExecResult, Guest};
pub use skip::{SkipReason, missing_for_guests, report_skip};
pub use slot::{Slot, free_port};
pub use stack::{Database, Part, Stack, StackOptions, VmRecord, boot_permit};
pub use wait::{GiveUp, until};
