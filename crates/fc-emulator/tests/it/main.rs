//! Drives the built program over its sockets.
//!
//! `api` needs nothing but the program, `machine` needs QEMU, `guest` boots real
//! guests and needs QEMU and a guest image (`FUSE_IMAGE_DIR`, else `fuse/image`
//! in the user's cache directory). What is missing is said with `SKIP`.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking, and skipped tests say so on standard output"
)]
#![expect(clippy::needless_pass_by_value, reason = "request bodies are literals")]

mod api;
mod emulator;
mod guest;
mod http;
mod image;
mod machine;
