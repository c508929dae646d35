//! The command line of the public surface, and the files it names.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::Parser;
use thiserror::Error;

/// Serves the public surface of a Fuse guest.
#[derive(Debug, Parser)]
#[command(name = "fused", version)]
pub(super) struct Options {
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0:9550")]
    pub(super) listen: String,
    /// The task's manifest.
    #[arg(long)]
    manifest: Option<PathBuf>,
    /// The task's secrets, a JSON object of strings.
    #[arg(long)]
    secrets: Option<PathBuf>,
    /// File with the bearer token. The surface stays locked while it is missing or empty.
    #[arg(long)]
    auth_token_file: Option<PathBuf>,
    /// Certificate chain in PEM; needs --tls-key.
    #[arg(long)]
    tls_cert: Option<PathBuf>,
    /// Private key in PEM; needs --tls-cert.
    #[arg(long)]
    tls_key: Option<PathBuf>,
    /// What to probe in the guest; nothing when there is no such file.
    #[arg(long, default_value = "/fuse/healthcheck.json")]
    pub(super) healthcheck: PathBuf,
    /// Where the probe's verdict is written.
    #[arg(long, default_value = "/fuse/health.json")]
    pub(super) health_state: PathBuf,
    /// Gateway of the task; only its presence is reported.
    #[arg(long)]
    gateway: Option<String>,
    /// Id of the VM, reported as it is.
    #[arg(long, default_value = "")]
    vm_id: String,
    /// Part of older units; warns that it has no effect.
    #[arg(long, hide = true)]
    insecure: bool,
    /// Part of older units; warns that it has no effect.
    #[arg(long, hide = true)]
    gateway_token: Option<String>,
}

/// What the surface reports about its guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) vm_id: String,
    pub(super) manifest_bytes: u64,
    pub(super) secret_count: usize,
    pub(super) gateway: bool,
}

/// Files that may change while the surface runs.
#[derive(Clone, Debug, Default)]
pub(super) struct CredentialFiles {
    pub(super) token: Option<PathBuf>,
    /// Certificate and key.
    pub(super) tls: Option<(PathBuf, PathBuf)>,
}

/// Why the surface does not start.
#[derive(Debug, Error)]
pub(super) enum OptionsError {
    /// A named file is not readable.
    #[error("cannot read the {what} {}", path.display())]
    Unreadable {
        /// Which of the files.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The secrets are not what they should be. Says nothing about their content.
    #[error("{} is not a JSON object of strings (line {line}, column {column})", path.display())]
    Secrets {
        /// Its path.
        path: PathBuf,
        /// Where reading stopped.
        line: usize,
        /// Where reading stopped.
        column: usize,
    },
}

impl Options {
    /// Tells about flags that older units pass and that mean nothing any more.
    pub(super) fn warn_obsolete(&self) {
        if self.insecure {
            tracing::warn!("--insecure has no effect: access depends on --auth-token-file alone");
        }
        if self.gateway_token.is_some() {
            tracing::warn!("--gateway-token has no effect; do not pass secrets as arguments");
        }
    }

    /// Reads the files that are read once.
    pub(super) fn facts(&self) -> Result<Facts, OptionsError> {
        let manifest_bytes = match &self.manifest {
            None => 0,
            Some(path) => read("manifest", path)?.len() as u64,
        };
        let secret_count = match &self.secrets {
            None => 0,
            Some(path) => {
                let text = read("secrets", path)?;
                let secrets: BTreeMap<String, String> =
                    serde_json::from_slice(&text).map_err(|error| OptionsError::Secrets {
                        path: path.clone(),
                        line: error.line(),
                        column: error.column(),
                    })?;
                secrets.len()
            }
        };
        let gateway = self
            .gateway
            .as_ref()
            .is_some_and(|gateway| !gateway.is_empty());
        Ok(Facts {
            vm_id: self.vm_id.clone(),
            manifest_bytes,
            secret_count,
            gateway,
        })
    }

    pub(super) fn credential_files(&self) -> CredentialFiles {
        let tls = self.tls_cert.clone().zip(self.tls_key.clone());
        if tls.is_none() && (self.tls_cert.is_some() || self.tls_key.is_some()) {
            tracing::warn!("serving without TLS: --tls-cert and --tls-key belong together");
        }
        CredentialFiles {
            token: self.auth_token_file.clone(),
            tls,
        }
    }
}

fn read(what: &'static str, path: &PathBuf) -> Result<Vec<u8>, OptionsError> {
    fs::read(path).map_err(|source| OptionsError::Unreadable {
        what,
        path: path.clone(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_counted_and_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets.json");
        let options = Options::parse_from(["fused", "--secrets", path.to_str().unwrap()]);
        assert!(matches!(
            options.facts(),
            Err(OptionsError::Unreadable { .. })
        ));
        fs::write(&path, r#"{"A":"hunter2","B":"x"}"#).unwrap();
        assert_eq!(options.facts().unwrap().secret_count, 2);
        fs::write(&path, r#"{"A":12345}"#).unwrap();
        let error = options.facts().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("12345"), "{error:?}");
    }

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let options = Options::parse_from(["fused"]);
        assert_eq!(options.listen, "0.0.0.0:9550");
        let none = Facts {
            vm_id: String::new(),
            manifest_bytes: 0,
            secret_count: 0,
            gateway: false,
        };
        assert_eq!(options.facts().unwrap(), none);
    }
}
