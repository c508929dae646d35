//! Configuration: flags over environment over defaults, checked before anything starts.
//!
//! An empty environment value counts as unset. Every refusal names the flag or variable
//! it is about and never repeats a secret.

mod args;
mod parse;

use std::{path::PathBuf, time::Duration};

use fuse_control::Settings;
use fuse_daemon::tls::TlsFiles;
use fuse_model::Redacted;

use crate::{
    http::{AddressBlocks, Auth},
    server::Timeouts,
};

pub use args::{Args, Command};
pub use parse::ConfigError;

/// Everything that the process may be told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address to bind, `host:port` or `:port`.
    pub listen: String,
    /// What the control plane is told.
    pub settings: Settings,
    /// Limits of connections.
    pub timeouts: Timeouts,
    /// How long a shutdown waits for requests and operations.
    pub shutdown_timeout: Duration,
    /// `None` = a store in memory.
    pub database_url: Option<Redacted<String>>,
    /// The master token.
    pub auth_token: Option<Redacted<String>>,
    /// Key of secrets at rest.
    pub encryption_key: Option<Redacted<[u8; 32]>>,
    /// The key before that, to read with.
    pub previous_encryption_key: Option<Redacted<[u8; 32]>>,
    /// Source addresses that are let in.
    pub allowlist: AddressBlocks,
    /// Proxies whose word counts on whom they speak for.
    pub trusted_proxies: AddressBlocks,
    /// Whether session cookies are marked `Secure`; `None` = as the listener.
    pub secure_cookies: Option<bool>,
    /// Certificate and key files; `None` = plaintext.
    pub tls: Option<TlsFiles>,
    /// Certificates that host agents may prove themselves by, beside the system's.
    pub agent_ca: Option<PathBuf>,
}

impl Config {
    /// Who is let in.
    #[must_use]
    pub fn auth(&self) -> Auth {
        match &self.auth_token {
            Some(token) => Auth::master(token.expose()),
            None => Auth::without_master(),
        }
    }

    /// Whether session cookies are for TLS only; unless told otherwise, when the
    /// listener has TLS.
    #[must_use]
    pub fn has_secure_cookies(&self) -> bool {
        self.secure_cookies.unwrap_or(self.tls.is_some())
    }

    /// The database URL without its password, for logs.
    #[must_use]
    pub fn masked_database_url(&self) -> String {
        let Some(url) = &self.database_url else {
            return "memory".to_owned();
        };
        let text = url.expose();
        let Some((scheme, rest)) = text.split_once("://") else {
            return "?".to_owned();
        };
        // The last @ before the path ends the credentials; passwords may contain others.
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        let plain = match rest.rfind('@') {
            Some(at) if scheme.starts_with("postgres") => {
                let user = authority.split([':', '@']).next().unwrap_or_default();
                format!("{user}:***{}", &rest[at..])
            }
            _ => rest.to_owned(),
        };
        // Parameters may carry a password too.
        let plain = plain.split('?').next().unwrap_or_default();
        format!("{scheme}://{plain}")
    }
}

#[cfg(test)]
mod tests;
