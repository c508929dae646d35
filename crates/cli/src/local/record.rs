//! Small facts that outlive a command, as JSON files in the state directory.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::error::file_error;
use super::{Error, Layout, Ports};

/// File of [`Stack`].
const STACK: &str = "stack.json";

/// What the last `up` started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stack {
    /// Port of the orchestrator.
    pub(crate) orchestrator_port: u16,
    /// Port of the host agent.
    pub(crate) agent_port: u16,
    /// `firecracker` or `emulator`.
    pub(crate) vmm: String,
    /// Its program.
    pub(crate) vmm_program: PathBuf,
    /// Why that one.
    pub(crate) reason: String,
    /// Which build of the orchestrator was started.
    pub(crate) orchestrator_build: String,
    /// Which build of the host agent was started.
    pub(crate) agent_build: String,
    /// SHA-256 of the agent token that the host was registered with.
    #[serde(default)]
    pub(crate) registered_token: String,
}

impl Stack {
    /// The ports.
    pub(crate) fn ports(&self) -> Ports {
        Ports {
            orchestrator: self.orchestrator_port,
            agent: self.agent_port,
        }
    }

    /// The record of the last `up`, if there was one.
    pub(crate) fn load(layout: &Layout) -> Option<Self> {
        load(&layout.file(STACK))
    }

    /// Keeps the record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn save(&self, layout: &Layout) -> Result<(), Error> {
        save(&layout.file(STACK), self)
    }
}

/// Reads a record. One that is missing or cannot be understood is none: everything recorded here can
/// be found out again.
pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Replaces a record in one step.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn save(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let outcome = (|| {
        // The directory is closed to others; what a root step recorded its user must be able to read.
        let mut file = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o644))
            .tempfile_in(path.parent().unwrap_or(Path::new(".")))?;
        serde_json::to_writer(&mut file, value)?;
        file.flush()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok::<_, io::Error>(())
    })();
    outcome.map_err(file_error("write", path))
}
