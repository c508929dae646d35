//! The listener and its connections: HTTP/1.1 over TCP or TLS, every phase bounded.

mod clock;
mod connection;
mod listening;
mod timed_io;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

pub use listening::Listening;

/// Limits of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Bound of receiving a request's head, counted from its first byte (from the
    /// connect for the first request).
    pub read_header: Duration,
    /// Bound of sending a response.
    pub write: Duration,
    /// How long a connection may rest between two requests.
    pub idle: Duration,
    /// Largest head of a request.
    pub max_header_bytes: usize,
}

impl Timeouts {
    /// The HTTP parser needs at least this much room.
    pub const MIN_HEADER_BYTES: usize = 8192;
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            read_header: Duration::from_secs(5),
            write: Duration::from_secs(60),
            idle: Duration::from_secs(120),
            max_header_bytes: 65_536,
        }
    }
}

/// Where a request comes from: the TCP peer, or whom a trusted proxy speaks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Its port; nobody asks a proxy for that.
    pub port: Option<u16>,
}

impl From<SocketAddr> for Peer {
    fn from(peer: SocketAddr) -> Self {
        Self {
            address: peer.ip(),
            port: Some(peer.port()),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

/// Put into the extensions of a response that may take as long as it likes: event
/// streams and commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unhurried;
