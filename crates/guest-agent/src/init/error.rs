//! Why a guest did not come up.

use std::io;
use std::path::{Path, PathBuf};

use fuse_wire_guest::boot::BootParamError;
use thiserror::Error;

/// A failed step of the boot. The text reaches whoever created the VM.
#[derive(Debug, Error)]
pub(crate) enum InitError {
    /// The command line does not say who the guest is.
    #[error("the guest was started without its boot parameters")]
    Params(#[source] BootParamError),
    /// A file system could not be mounted.
    #[error("cannot mount {what} on {target}")]
    Mount {
        /// Device or kind of file system.
        what: String,
        /// Where.
        target: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A kernel module could not be loaded.
    #[error("cannot load kernel module {name}; the initramfs does not fit this kernel or VMM")]
    Module {
        /// Module name.
        name: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A disk is not there.
    #[error("the VM has no {device} ({role})")]
    NoDisk {
        /// Device file.
        device: &'static str,
        /// What it is for.
        role: &'static str,
    },
    /// The overlay disk holds something that is not ours to overwrite.
    #[error("{device} is neither blank nor an ext4 file system; refusing to format it")]
    ForeignDisk {
        /// Device file.
        device: &'static str,
    },
    /// The overlay disk is blank and could not be formatted.
    #[error("cannot make a file system on {device}: {reason}")]
    Format {
        /// Device file.
        device: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// A file or directory could not be used.
    #[error("cannot {verb} {path}")]
    File {
        /// Read, write, make ...
        verb: &'static str,
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The new root could not be entered.
    #[error("cannot switch to the root file system")]
    SwitchRoot(#[source] io::Error),
    /// A resource limit could not be set.
    #[error("cannot set the limit of {name}")]
    Limit {
        /// Which.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The base image cannot run commands.
    #[error(
        "the base image has no usable /bin/sh, which the guest needs to run commands; \
         use an image with a shell"
    )]
    NoShell(#[source] io::Error),
}

impl InitError {
    pub(super) fn mount(what: &str, target: &Path, source: impl Into<io::Error>) -> Self {
        Self::Mount {
            what: what.to_owned(),
            target: target.to_owned(),
            source: source.into(),
        }
    }

    pub(crate) fn file(verb: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::File {
            verb,
            path: path.to_owned(),
            source: source.into(),
        }
    }
}
