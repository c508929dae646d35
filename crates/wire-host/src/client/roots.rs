//! Certificates of the operator's own, by which agents prove who they are.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use reqwest::Certificate;
use thiserror::Error;

/// Certificates that are trusted beside the system's: of a private authority, or of agents that
/// signed their own.
#[derive(Clone, Default)]
pub struct AgentRoots(Vec<Certificate>);

/// A file that names nobody to trust.
#[derive(Debug, Error)]
pub enum RootsError {
    /// Absent or unreadable.
    #[error("cannot read {}", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// Not PEM.
    #[error("{} is not a file of PEM certificates", .0.display())]
    Malformed(PathBuf, #[source] reqwest::Error),
    /// PEM without a certificate.
    #[error("{} holds no certificate", .0.display())]
    Empty(PathBuf),
}

impl AgentRoots {
    /// Reads a file of PEM certificates.
    ///
    /// # Errors
    /// It cannot be read, is not PEM, or holds none.
    pub fn read(file: &Path) -> Result<Self, RootsError> {
        let text = std::fs::read(file).map_err(|e| RootsError::Unreadable(file.into(), e))?;
        let certificates = Certificate::from_pem_bundle(&text)
            .map_err(|e| RootsError::Malformed(file.into(), e))?;
        if certificates.is_empty() {
            return Err(RootsError::Empty(file.into()));
        }
        Ok(Self(certificates))
    }

    pub(super) fn certificates(&self) -> impl Iterator<Item = Certificate> {
        self.0.iter().cloned()
    }
}

impl fmt::Debug for AgentRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentRoots({})", self.0.len())
    }
}
