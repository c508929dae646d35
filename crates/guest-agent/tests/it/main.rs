//! `fused` in real guests: QEMU boots the built image and the tests speak to the
//! guest as a host does. They need root for nothing, but an image and QEMU; where
//! one is missing they say SKIP.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test that cannot go on fails its test"
)]

mod boot;
mod control;
mod guest;
mod surface;
mod survival;
