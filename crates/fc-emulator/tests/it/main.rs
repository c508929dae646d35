//! Drives the built program over its sockets.
//!
//! `api` needs nothing but the program, `machine` needs QEMU, `guest` boots real
//! guests and needs QEMU and a guest image (`FUSE_IMAGE_DIR`, else `fuse/image`
//! in the user's cache directory). What is missing is said with `SKIP`.

mod api;
mod emulator;
mod guest;
mod http;
mod image;
mod machine;
