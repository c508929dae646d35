//! Name resolution with a typed failure, so that "host not found" is told by type and not by text.

use std::net::SocketAddr;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// The name of the orchestrator could not be resolved.
#[derive(Debug, thiserror::Error)]
#[error("could not resolve {name}")]
pub(crate) struct LookupFailed {
    name: String,
    source: std::io::Error,
}

/// The system's resolver.
#[derive(Debug)]
pub(crate) struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            // The port is filled in by the connector.
            match tokio::net::lookup_host((name.as_str(), 0)).await {
                Ok(found) => {
                    let found: Vec<SocketAddr> = found.collect();
                    Ok(Box::new(found.into_iter()) as Addrs)
                }
                Err(source) => Err(LookupFailed {
                    name: name.as_str().to_owned(),
                    source,
                }
                .into()),
            }
        })
    }
}
