//! The connection pool shared by all agents of a process.

use http::{HeaderMap, HeaderValue};
use thiserror::Error;

use super::AgentRoots;
use crate::{Generations, generation, limits};

/// Keeps connections to host agents. Clone it freely; the clones share the pool.
#[derive(Debug, Clone)]
pub struct HostTransport {
    pub(super) http: reqwest::Client,
}

/// The HTTP client could not be built, which means the system's TLS roots are unusable.
#[derive(Debug, Error)]
#[error("cannot set up the HTTP client for host agents")]
pub struct TransportError(#[source] reqwest::Error);

impl HostTransport {
    /// Makes a pool.
    ///
    /// # Errors
    /// The system's TLS roots cannot be read.
    pub fn new() -> Result<Self, TransportError> {
        Self::trusting(&AgentRoots::default())
    }

    /// Makes a pool that also trusts agents whose certificates these prove.
    ///
    /// # Errors
    /// The system's TLS roots, or one of these, cannot be used.
    pub fn trusting(roots: &AgentRoots) -> Result<Self, TransportError> {
        // The TLS crates carry no default provider here; an error means one is installed already.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _already = rustls::crypto::ring::default_provider().install_default();
        }
        let mut headers = HeaderMap::new();
        if let Ok(ours) = HeaderValue::from_str(&Generations::OURS.to_string()) {
            headers.insert(generation::HEADER, ours);
        }
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .redirect(reqwest::redirect::Policy::none())
            // A proxy from the environment would be handed the agent's token.
            .no_proxy()
            .connect_timeout(limits::CONNECT_LIMIT)
            .pool_idle_timeout(limits::POOL_IDLE)
            .pool_max_idle_per_host(limits::POOL_IDLE_PER_HOST)
            .tcp_nodelay(true)
            .tls_certs_merge(roots.certificates())
            .build()
            .map_err(TransportError)?;
        Ok(Self { http })
    }
}
