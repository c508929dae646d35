//! Why an image was not built, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A failed build. Nothing half-made is left behind.
#[derive(Debug, Error)]
pub enum ImageError {
    /// Programs that are needed are not installed.
    #[error("missing {tools}; install with: apt-get install {packages}")]
    MissingTools {
        /// Names of the programs.
        tools: String,
        /// Packages that hold them.
        packages: String,
    },
    /// Only root can make device files and file owners.
    #[error("building the guest image needs root; run it again with sudo")]
    NotRoot,
    /// The machine runs something else than Debian or Ubuntu on x86-64.
    #[error(
        "guest images are built on Debian or Ubuntu on amd64, this is {found}; \
         build the image on such a machine and copy the directory"
    )]
    UnsupportedSystem {
        /// What was found.
        found: String,
    },
    /// The package manager knows no package source of the distribution.
    #[error(
        "apt knows no package source of {distribution}; check the files in /etc/apt and \
         that the mirror is reachable, then run: apt-get update"
    )]
    NoSources {
        /// Name and release.
        distribution: String,
    },
    /// A program failed.
    #[error("{step} failed: {program}: {detail}")]
    Command {
        /// What was being done.
        step: &'static str,
        /// Which program.
        program: String,
        /// The end of what it said.
        detail: String,
    },
    /// A file could not be used.
    #[error("cannot {verb} {}", path.display())]
    File {
        /// Read, write, make ...
        verb: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The guest agent is not one that can run in an initramfs.
    #[error("{} {problem}; build it with: make fused", path.display())]
    Fused {
        /// Where it was looked for.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The distribution's kernel is not as expected.
    #[error("kernel package {package}: {problem}")]
    Kernel {
        /// Name of the package.
        package: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The root file system is not usable.
    #[error("the root file system is not usable: {0}")]
    Rootfs(&'static str),
    /// No variant of that name.
    #[error("there is no image variant {name:?}; there are: {known}")]
    NoVariant {
        /// The name as given.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The directory does not hold a complete image.
    #[error("{} holds no complete guest image; build one with: fc-agent image build --out {}", dir.display(), dir.display())]
    NoImage {
        /// Which directory.
        dir: PathBuf,
    },
}

impl ImageError {
    /// For `map_err` on file operations.
    pub(crate) fn file(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { verb, path, source }
    }
}
