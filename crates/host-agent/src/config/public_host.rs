//! The host part of the URLs that the agent hands out.
//!
//! `PUBLIC_HOST` wins. Without it the agent takes the source address of its default route, then the
//! first address of its interfaces. It does not ask a service on the internet what address it is
//! seen from: an agent must start at once and offline, a start should tell nobody about the host,
//! and behind a NAT the answer would be an address on which nothing of this host is reachable
//! anyway. Operators of such hosts set `PUBLIC_HOST`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use thiserror::Error;

/// An IP address or a DNS name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicHost(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Ip(IpAddr),
    Name(String),
}

/// No usable public host.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PublicHostError {
    /// Neither an IP address nor a DNS name.
    #[error("{0:?} is neither an IP address nor a DNS name")]
    Invalid(String),
    /// Nothing to detect it from.
    #[error(
        "this host has no address besides loopback; set PUBLIC_HOST to the name or address under \
         which others reach it (127.0.0.1 if nobody does)"
    )]
    None,
}

impl PublicHost {
    /// Reads an IP address (IPv6 with or without brackets) or a DNS name.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, PublicHostError> {
        let bare = text
            .strip_prefix('[')
            .and_then(|t| t.strip_suffix(']'))
            .unwrap_or(text);
        if let Ok(ip) = bare.parse() {
            return Ok(Self(Kind::Ip(ip)));
        }
        if is_dns_name(text) {
            return Ok(Self(Kind::Name(text.to_owned())));
        }
        Err(PublicHostError::Invalid(text.to_owned()))
    }

    /// Finds it from the host's routes and interfaces.
    ///
    /// # Errors
    /// There is nothing but loopback.
    pub fn detect() -> Result<Self, PublicHostError> {
        let v4 = || route_source((Ipv4Addr::new(192, 0, 2, 1), 9).into());
        let v6 = || route_source((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into());
        let addresses = interface_addresses();
        let first = |want: fn(&IpAddr) -> bool| addresses.iter().copied().find(want);
        v4().or_else(|| first(IpAddr::is_ipv4))
            .or_else(v6)
            .or_else(|| first(|_| true))
            .map(|ip| Self(Kind::Ip(ip)))
            .ok_or(PublicHostError::None)
    }

    /// `host:port`, with IPv6 in brackets.
    #[must_use]
    pub fn authority(&self, port: u16) -> String {
        match &self.0 {
            Kind::Ip(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
            Kind::Ip(ip) => format!("{ip}:{port}"),
            Kind::Name(name) => format!("{name}:{port}"),
        }
    }
}

impl fmt::Display for PublicHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Ip(ip) => ip.fmt(f),
            Kind::Name(name) => f.write_str(name),
        }
    }
}

/// The address that packets to the outside would carry. Connecting a datagram socket only looks up
/// the route; nothing is sent, and the documentation network is nobody's.
fn route_source(outside: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match outside {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(outside).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    usable(ip).then_some(ip)
}

fn interface_addresses() -> Vec<IpAddr> {
    let Ok(list) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    list.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| a.ip().into()))
    })
    .filter(|ip| usable(*ip))
    .collect()
}

fn usable(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !link_local
}

fn is_dns_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_and_refused_hosts() {
        for (text, authority) in [
            ("10.0.0.5", "10.0.0.5:80"),
            ("::1", "[::1]:80"),
            ("[2001:db8::1]", "[2001:db8::1]:80"),
            ("host-1.example", "host-1.example:80"),
        ] {
            assert_eq!(PublicHost::parse(text).unwrap().authority(80), authority);
        }
        for text in [
            "",
            "a b",
            "-a",
            "a-",
            "a..b",
            "http://a",
            "a:80",
            &"x".repeat(64),
        ] {
            assert!(PublicHost::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn detection_never_answers_loopback() {
        if let Ok(host) = PublicHost::detect() {
            assert!(!host.to_string().starts_with("127."), "{host}");
        }
    }
}
