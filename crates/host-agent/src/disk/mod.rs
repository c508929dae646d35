//! Disks of VMs: a read-only base image shared by all, and a sparse overlay of each.
//!
//! [`images`] resolves what a caller names and pins its bytes by digest, [`overlay`] makes a VM's
//! writable disk from a template in milliseconds, [`copy`] copies files without filling holes,
//! [`sealed`] takes the digest along with a copy, [`sparse_form`] is how a disk travels,
//! [`space`] refuses work before the file system is full. All functions here block; callers run
//! them through `spawn_blocking`.

pub mod copy;
pub mod images;
pub mod overlay;
pub mod sealed;
pub mod space;
pub mod sparse_form;

pub use images::{BaseImage, ImageError, Images};
pub use overlay::{OverlayError, Overlays};
pub use space::SpaceError;
