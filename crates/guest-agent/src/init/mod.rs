//! From the kernel's first user process to a running system.
//!
//! ```text
//! early mounts -> modules -> root (base + overlay) -> switch root -> groups, identity
//! ```
//!
//! All of it runs once, synchronously, before there are threads. A step that
//! fails does not end PID 1, which would end the VM without a word: the control
//! channel comes up all the same and reports the error to the host.

mod error;
mod identity;
mod modules;
mod mounts;
pub(crate) mod network;
mod root;

pub(crate) use error::InitError;

use std::fs;

use fuse_wire_guest::BootParams;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit};

use crate::cgroup::Cgroups;
use crate::log;

/// Open files: plenty for servers, yet few enough that programs which walk all
/// possible descriptors stay fast.
const OPEN_FILES: Rlimit = Rlimit {
    current: Some(65_536),
    maximum: Some(1_048_576),
};

/// What the boot led to.
#[derive(Debug)]
pub(crate) struct Boot {
    /// Identity and network; empty where the command line could not be read.
    pub(crate) params: BootParams,
    /// Id of this boot, from the kernel.
    pub(crate) boot_id: String,
    /// The groups, absent when the boot failed before them.
    pub(crate) cgroups: Option<Cgroups>,
    /// Why the guest is not usable.
    pub(crate) error: Option<String>,
}

/// Brings the system up.
pub(crate) fn boot() -> Boot {
    let early = mounts::early();
    log::to_kernel();
    tracing::info!(version = crate::VERSION, "the guest agent boots");
    let read = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let (params, params_error) = match BootParams::from_cmdline(&read) {
        Ok(params) => (params, None),
        Err(error) => {
            let none = BootParams {
                vm_id: String::new(),
                hostname: "fuse".into(),
                network: None,
            };
            (none, Some(InitError::Params(error)))
        }
    };
    let result = early
        .and_then(|()| params_error.map_or(Ok(()), Err))
        .and_then(|()| modules::load_drivers())
        .and_then(|()| system(&params));
    let (cgroups, error) = match result {
        Ok(cgroups) => (Some(cgroups), root::check_usable().err()),
        Err(error) => {
            // The host still has to hear about it.
            drop(modules::load_drivers());
            (None, Some(error))
        }
    };
    let error = error.map(|error| describe(&error));
    if let Some(error) = &error {
        tracing::error!(%error, "the guest is not usable");
    }
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Boot {
        params,
        boot_id: boot_id.trim().to_owned(),
        cgroups,
        error,
    }
}

/// Everything after the drivers.
fn system(params: &BootParams) -> Result<Cgroups, InitError> {
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    tracing::info!("drivers are loaded");
    root::assemble()?;
    let mounted = mounts::system(root::NEW_ROOT).and_then(|()| root::keep_program());
    // Even if not all is there: the devices have moved to the new root already.
    root::switch()?;
    mounted?;
    tracing::info!("the root file system is mounted");
    rustix::process::setrlimit(Resource::Nofile, OPEN_FILES).map_err(|e| InitError::Limit {
        name: "open files",
        source: e.into(),
    })?;
    let cgroups = Cgroups::set_up()?;
    // No longer for the kernel to choose when memory runs out.
    mounts::write("/proc/self/oom_score_adj", "-1000")?;
    identity::apply(params)?;
    Ok(cgroups)
}

/// The whole chain of an error in one line.
fn describe(error: &InitError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
