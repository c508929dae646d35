//! Root file systems: the base, a small system of the distribution in which `apt`
//! works, and variants of it with more packages.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::distro::System;
use crate::kernel::KernelTree;
use crate::tools;
use crate::{Image, ImageError};

/// Raised when the content changes for another reason than its inputs.
pub(crate) const VERSION: &str = "1";

/// Latest time of any file, in seconds since 1970: equal inputs give equal files.
pub(crate) const EPOCH: u64 = 1_767_225_600;

/// What people expect in a sandbox beside the essential packages.
pub(crate) const PACKAGES: [&str; 12] = [
    // Not part of the smallest Ubuntu.
    "apt",
    "bash",
    "ca-certificates",
    "curl",
    "e2fsprogs",
    "iproute2",
    "iputils-ping",
    "kmod",
    "netbase",
    "procps",
    "python3",
    "tzdata",
];

/// Left out of every package, as in container images; licences stay.
const DPKG_OPTIONS: [&str; 6] = [
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/locale/*",
    // The overlay is as durable as its VM; packages need not be written twice.
    "force-unsafe-io",
];

/// Modules beyond those for booting: for containers, tunnels and file systems.
const MODULE_DIRS: [&str; 9] = [
    "kernel/arch",
    "kernel/crypto",
    "kernel/drivers/block",
    "kernel/drivers/md",
    "kernel/drivers/net",
    "kernel/drivers/char",
    "kernel/fs",
    "kernel/lib",
    "kernel/net",
];

/// Drivers of hardware that no VM of ours has.
const NO_SUCH_HARDWARE: [&str; 4] = ["ethernet", "wireless", "usb", "infiniband"];

/// Room for the file system's own structures.
const SLACK_BYTES: u64 = 32 * 1024 * 1024;

/// Where kernel modules come from.
pub(crate) enum Modules<'a> {
    /// The kernel as it was fetched.
    Kernel(&'a KernelTree),
    /// The root file system of an image, so that the modules fit its kernel.
    Image(&'a Image),
}

/// What makes one root file system differ from another.
pub(crate) struct Recipe<'a> {
    /// Packages beside [`PACKAGES`].
    pub(crate) packages: &'a [&'a str],
    /// A shell script that is run in the finished system.
    pub(crate) script: &'a str,
    /// Makes equal builds equal.
    pub(crate) identity: &'a str,
}

/// Builds the file system below `work` and writes its image to `target`.
pub(crate) fn write(
    system: &System,
    modules: &Modules<'_>,
    recipe: &Recipe<'_>,
    (work, target): (&Path, &Path),
) -> Result<(), ImageError> {
    let root = work.join("root");
    bootstrap(system, recipe.packages, &root)?;
    match modules {
        Modules::Kernel(kernel) => add_modules(kernel, &root)?,
        Modules::Image(image) => take_modules(image, &root)?,
    }
    finish(&root)?;
    if !recipe.script.is_empty() {
        let mut shell = tools::command("chroot");
        shell.arg(&root).args(["/bin/sh", "-euc", recipe.script]);
        tools::run("setting the root file system up", &mut shell)?;
    }
    make_image(&root, recipe.identity, target)
}

fn bootstrap(system: &System, packages: &[&str], root: &Path) -> Result<(), ImageError> {
    let mut sources = system.sources();
    if sources.is_err() {
        crate::distro::update_package_lists()?;
        sources = system.sources();
    }
    let mut command = tools::command("mmdebstrap");
    command
        .args(["--mode=root", "--variant=minbase", "--format=directory"])
        .arg(format!("--architectures={}", system.arch))
        .arg(format!(
            "--include={}",
            [&PACKAGES, packages].concat().join(",")
        ))
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        .arg("--aptopt=Acquire::Languages \"none\"")
        .args(DPKG_OPTIONS.map(|option| format!("--dpkgopt={option}")))
        .arg(system.codename())
        .arg(root)
        .args(sources?);
    tools::run("making the root file system", &mut command)?;
    Ok(())
}

/// Copies the modules that users' software loads by name, and indexes them.
fn add_modules(kernel: &KernelTree, root: &Path) -> Result<(), ImageError> {
    let target = root.join("usr/lib/modules").join(&kernel.version);
    for name in MODULE_DIRS {
        let source = kernel.modules.join(name);
        if source.is_dir() {
            copy_modules(&source, &target.join(name))?;
        }
    }
    for name in [
        "modules.order",
        "modules.builtin",
        "modules.builtin.modinfo",
    ] {
        let source = kernel.modules.join(name);
        if source.is_file() {
            copy(&source, &target.join(name))?;
        }
    }
    let mut index = tools::command("chroot");
    index.arg(root).args(["depmod", "-a", &kernel.version]);
    tools::run("indexing kernel modules", &mut index)?;
    Ok(())
}

/// Copies modules and their index out of another root file system. Nothing is mounted.
fn take_modules(image: &Image, root: &Path) -> Result<(), ImageError> {
    let version = &image.manifest.kernel_version;
    let target = root.join("usr/lib/modules");
    fs::create_dir_all(&target).map_err(ImageError::file("make", &target))?;
    let mut dump = tools::command("debugfs");
    dump.arg("-R")
        .arg(format!(
            "rdump /usr/lib/modules/{version} {}",
            target.display()
        ))
        .arg(image.rootfs());
    tools::run("copying kernel modules", &mut dump)?;
    // It reports success whatever happens.
    let index = target.join(version).join("modules.dep");
    fs::metadata(&index).map_err(ImageError::file("copy", &index))?;
    Ok(())
}

fn copy_modules(source: &Path, target: &Path) -> Result<(), ImageError> {
    fs::create_dir_all(target).map_err(ImageError::file("make", target))?;
    for entry in fs::read_dir(source).map_err(ImageError::file("read", source))? {
        let entry = entry.map_err(ImageError::file("read", source))?;
        let (path, name) = (entry.path(), entry.file_name());
        if NO_SUCH_HARDWARE.iter().any(|excluded| name == *excluded) {
            continue;
        }
        let target = target.join(&name);
        if path.is_dir() {
            copy_modules(&path, &target)?;
        } else {
            copy(&path, &target)?;
        }
    }
    Ok(())
}

fn copy(source: &Path, target: &Path) -> Result<(), ImageError> {
    fs::copy(source, target).map_err(ImageError::file("copy", source))?;
    Ok(())
}

/// Takes out what belongs to the machine that built it, and checks the result.
fn finish(root: &Path) -> Result<(), ImageError> {
    // `fused` writes these at every boot.
    for name in ["etc/hostname", "etc/resolv.conf", "etc/machine-id"] {
        let path = root.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(ImageError::file("remove", &path)(error));
            }
            _ => {}
        }
    }
    for name in ["fuse", "var/lib/containers"] {
        let path = root.join(name);
        fs::create_dir_all(&path).map_err(ImageError::file("make", &path))?;
    }
    // Nothing in the guest manages services, so packages must not try to start theirs.
    let policy = root.join("usr/sbin/policy-rc.d");
    fs::write(&policy, "#!/bin/sh\nexit 101\n").map_err(ImageError::file("write", &policy))?;
    fs::set_permissions(&policy, fs::Permissions::from_mode(0o755))
        .map_err(ImageError::file("write", &policy))?;
    let mut shell = tools::command("chroot");
    shell.arg(root).args(["/bin/sh", "-c", CHECK]);
    tools::run("trying the root file system", &mut shell)?;
    Ok(())
}

/// What `fused` and users rely on.
const CHECK: &str = "for tool in apt-get bash mkfs.ext4 modprobe; do \
     command -v $tool >/dev/null || { echo \"it has no $tool\" >&2; exit 1; }; done";

fn make_image(root: &Path, identity: &str, path: &Path) -> Result<(), ImageError> {
    let usage = Usage::of(root)?;
    let size = (usage.bytes + usage.bytes / 20 + SLACK_BYTES).next_multiple_of(1024 * 1024);
    let uuid = uuid_from(identity);
    let mut make = tools::command("mkfs.ext4");
    make.args(["-q", "-F", "-L", "fuse-base", "-m", "0", "-b", "4096"])
        // It is only ever read: no journal, no room to grow.
        .args(["-O", "^has_journal,^resize_inode"])
        .args(["-N", &(usage.files + 1024).to_string()])
        .args([
            "-U",
            &uuid,
            "-E",
            &format!("hash_seed={uuid},root_owner=0:0"),
        ])
        .arg("-d")
        .arg(root)
        .arg(path)
        .arg(format!("{}k", size / 1024))
        .env("E2FSPROGS_FAKE_TIME", EPOCH.to_string());
    tools::run("writing the root file system", &mut make)?;
    let mut check = tools::command("e2fsck");
    check.args(["-f", "-n"]).arg(path);
    tools::run("checking the root file system", &mut check)?;
    Ok(())
}

/// What a directory tree takes in a file system.
#[derive(Debug, Default)]
struct Usage {
    bytes: u64,
    files: u64,
}

impl Usage {
    fn of(root: &Path) -> Result<Self, ImageError> {
        let mut usage = Self::default();
        let mut dirs: Vec<PathBuf> = vec![root.to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).map_err(ImageError::file("read", &dir))? {
                let path = entry.map_err(ImageError::file("read", &dir))?.path();
                let meta = fs::symlink_metadata(&path).map_err(ImageError::file("read", &path))?;
                usage.files += 1;
                usage.bytes += meta.size().next_multiple_of(4096);
                if meta.is_dir() {
                    dirs.push(path);
                }
            }
        }
        Ok(usage)
    }
}

/// The first 128 bits of a digest in the form of a UUID.
fn uuid_from(digest: &str) -> String {
    let part = |range| digest.get(range).unwrap_or("0");
    format!(
        "{}-{}-4{}-8{}-{}",
        part(0..8),
        part(8..12),
        part(12..15),
        part(15..18),
        part(18..30)
    )
}
