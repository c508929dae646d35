//! The part of an image that comes from the distribution: kernel, modules and
//! root file system. They belong together, because the root file system holds
//! modules that fit only this kernel.

use std::fs;
use std::path::Path;

use crate::build::Progress;
use crate::distro::System;
use crate::kernel::KernelTree;
use crate::manifest::{Image, Manifest};
use crate::rootfs::{Modules, Recipe};
use crate::tools::{self, Tool};
use crate::{ImageError, KERNEL, MODULES, ROOTFS, VMLINUZ, digest, modules, rootfs};

/// Raised when the kernel or the modules change for another reason than their inputs.
const VERSION: &str = "2";

/// Files of this part.
pub(crate) const FILES: [&str; 4] = [KERNEL, VMLINUZ, MODULES, ROOTFS];

/// Needed for a root file system.
const TOOLS: [Tool; 7] = [
    ("apt-get", "apt"),
    ("apt-cache", "apt"),
    ("dpkg-deb", "dpkg"),
    ("mmdebstrap", "mmdebstrap"),
    ("mkfs.ext4", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("chroot", "coreutils"),
];

/// Digest of what this part is built from. New versions of packages do not
/// count: an image is refreshed when somebody asks for it.
pub(crate) fn inputs(system: &System) -> String {
    let mut inputs = vec!["base", VERSION, rootfs::VERSION];
    inputs.extend(system.inputs());
    inputs.extend(rootfs::PACKAGES);
    inputs.extend(modules::WANTED);
    digest::of_inputs(&inputs)
}

/// Whether a root file system can be made here.
pub(crate) fn check_means() -> Result<(), ImageError> {
    tools::require(&TOOLS)?;
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(ImageError::NotRoot)
    }
}

/// Builds the part into `dir`; returns the kernel's release.
pub(crate) fn build(
    system: &System,
    dir: &Path,
    progress: &mut Progress<'_>,
) -> Result<String, ImageError> {
    check_means()?;
    let work = dir.join("work");
    fs::create_dir_all(&work).map_err(ImageError::file("make", &work))?;
    progress("downloading the kernel");
    let tree = KernelTree::fetch(system, &work)?;
    progress("unpacking the kernel and its modules");
    tree.write_vmlinux(dir)?;
    tree.keep_vmlinuz(dir)?;
    let path = dir.join(MODULES);
    fs::write(&path, modules::archive(&tree)?).map_err(ImageError::file("write", &path))?;
    progress("making the root file system (about a minute)");
    let identity = digest::of_inputs(&[&inputs(system), &tree.version]);
    let recipe = Recipe {
        packages: &[],
        script: "",
        identity: &identity,
    };
    let target = dir.join(ROOTFS);
    rootfs::write(system, &Modules::Kernel(&tree), &recipe, (&work, &target))?;
    fs::remove_dir_all(&work).map_err(ImageError::file("remove", &work))?;
    Ok(tree.version)
}

/// Takes the part over from an image that was built from the same inputs.
pub(crate) fn reuse(image: &Image, dir: &Path) -> Result<(), ImageError> {
    for name in FILES {
        let (source, target) = (image.dir.join(name), dir.join(name));
        // The same file under a second name; it is never written to again.
        if fs::hard_link(&source, &target).is_err() {
            fs::copy(&source, &target).map_err(ImageError::file("copy", &source))?;
        }
    }
    Ok(())
}

/// Whether `manifest` describes this part for `inputs`.
pub(crate) fn is_current(manifest: &Manifest, inputs: &str) -> bool {
    manifest.parts.base == inputs && FILES.iter().all(|name| manifest.files.contains_key(*name))
}
