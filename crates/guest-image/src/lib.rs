//! Builds what a guest boots, from the packages of the distribution it runs on.
//!
//! ```text
//! kernel package ---> vmlinux.bin                       \
//!        \--> modules --+--> modules.cpio --+            |
//! mmdebstrap ----------/--> rootfs-fused.ext4            > one directory, described by image.json
//! fused (static) ----------> initramfs.img <-+           |
//!                                                       /
//! mmdebstrap, more packages, the base's modules ---> images/NAME.ext4
//! ```
//!
//! The base (kernel, modules, root file system) takes a minute and changes with
//! the distribution; the initramfs takes a second and changes with `fused`. Each
//! is rebuilt only when its inputs changed. Files appear in the directory whole
//! or not at all, and `image.json` last, so that an interrupted build leaves the
//! image of before or none, never half of one.
//!
//! Everything here blocks. Called by `fc-agent image build` and by tests.

mod base;
mod build;
mod cpio;
mod digest;
mod distro;
mod elf;
mod error;
mod initramfs;
mod kernel;
mod manifest;
mod modules;
mod rootfs;
mod tools;
mod variant;

pub use build::{BuildOptions, Progress, build, needs_build};
pub use error::ImageError;
pub use manifest::{FileEntry, Image, Manifest};
pub use variant::{VARIANTS, Variant, VariantOptions, build_variant};

/// The uncompressed ELF kernel.
pub const KERNEL: &str = "vmlinux.bin";
/// The kernel as it came, for firmware that starts it.
pub const VMLINUZ: &str = "vmlinuz.bin";
/// The initramfs with `fused` as `/init`.
pub const INITRAMFS: &str = "initramfs.img";
/// The base root file system, which all guests share read-only.
pub const ROOTFS: &str = "rootfs-fused.ext4";
/// What the directory holds.
pub const MANIFEST: &str = "image.json";
/// Directory of the variants, in that of the image.
pub const VARIANTS_DIR: &str = "images";
/// The part of the initramfs that does not change with `fused`.
const MODULES: &str = "modules.cpio";
