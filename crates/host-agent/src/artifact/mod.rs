//! Disks of snapshots, and the base images below them, on their way between hosts.
//!
//! ```text
//! serve:  grant ok? ─> hold the snapshot ─> its sparse form, from the asked-for byte on
//! pull:   open ─> fits? ─> base image, unless it is here ─> disk ─> digest ok? ─> fsync, rename
//!                 └ a cut connection is opened again from the byte where it ended
//! ```
//!
//! What arrives is written beside its place and hashed on the way; it gets its name by a rename once
//! the digest is right, so nothing unverified is ever visible, and what an agent leaves that is
//! killed goes at the next start. A pull goes on when its caller goes away.

mod error;
mod pull;
mod serve;
mod staging;
mod transfer;

#[cfg(test)]
mod tests;

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fuse_wire_host::{AgentRoots, AgentToken, HostTransport};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{ArtifactSettings, Config};
use crate::disk::Images;
use crate::file_error::{FileError, failed};
use crate::snapshot::{ARRIVING, Snapshots};

pub use error::{OpenError, PullError, ServeError};
pub use pull::PullBegun;
pub use serve::Served;

/// Name of the directory that disks arrive in.
const STAGING: &str = "artifact-pull-tmp";
/// Artifacts that are served at a time.
const SERVING: usize = 8;
/// Artifacts that are fetched at a time; more wait.
const FETCHING: usize = 4;

/// The artifacts of a host. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Artifacts {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    snapshots: Arc<Snapshots>,
    images: Arc<Images>,
    staging: PathBuf,
    settings: ArtifactSettings,
    token: AgentToken,
    transport: HostTransport,
    begun: serve::Begun,
    serving: Arc<Semaphore>,
    pulls: pull::Pulls,
    fetching: Semaphore,
    /// Two pulls that need the same image fetch it once.
    fetching_image: Mutex<()>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Artifacts {
    /// Finds the staging directory, and removes what was never finished.
    ///
    /// # Errors
    /// It cannot be made or is in another file system than the snapshots, or nobody can be trusted
    /// by the certificates that are configured.
    pub fn open(
        config: &Config,
        snapshots: Arc<Snapshots>,
        images: Arc<Images>,
        tasks: TaskTracker,
        shutdown: CancellationToken,
    ) -> Result<Self, OpenError> {
        let staging = staging_dir(config, snapshots.dir())?;
        for dir in [&*staging, images.store()] {
            staging::sweep(dir)?;
        }
        let roots = config.agent_ca.as_deref().map(AgentRoots::read);
        let roots = roots.transpose()?.unwrap_or_default();
        let inner = Inner {
            snapshots,
            images,
            staging,
            settings: config.artifacts,
            token: config.token.clone(),
            transport: HostTransport::trusting(&roots)?,
            begun: serve::Begun::default(),
            serving: Arc::new(Semaphore::new(SERVING)),
            pulls: pull::Pulls::default(),
            fetching: Semaphore::new(FETCHING),
            fetching_image: Mutex::new(()),
            tasks,
            shutdown,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

/// Where disks arrive: a rename must bring them among the snapshots.
fn staging_dir(config: &Config, snapshots: &Path) -> Result<PathBuf, OpenError> {
    if let Some(staging) = config.paths.staging.clone() {
        make(&staging)?;
        if device(&staging)? == device(snapshots)? {
            return Ok(staging);
        }
        let snapshots = snapshots.to_owned();
        return Err(OpenError::Apart { staging, snapshots });
    }
    match snapshots.parent() {
        Some(parent) if device(parent)? == device(snapshots)? => Ok(parent.join(STAGING)),
        _ => Ok(snapshots.join(ARRIVING)),
    }
}

/// Makes a directory for our eyes only.
fn make(dir: &Path) -> Result<(), FileError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(dir).map_err(failed("create", dir))
}

fn device(path: &Path) -> Result<u64, FileError> {
    Ok(fs::metadata(path).map_err(failed("read", path))?.dev())
}
