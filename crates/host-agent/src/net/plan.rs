//! The address plan: what VM number N is called and where it lives.
//!
//! Slots 1 to 249 of the default plan are compatibility facts: tap `fcvN`, `10.200.N.0/30` with the
//! host at `.1` and the guest at `.2`, host port base + N. Further slots, on hosts that raise
//! `FUSE_MAX_VMS`, use the next /30 of each third octet, so no slot ever moves.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Prefix length of a VM's own network.
pub const LINK_PREFIX: u8 = 30;
/// /30 networks in one /24.
const LINKS_PER_ROW: u32 = 64;
/// Longest interface name that Linux takes.
const IFNAME_MAX: usize = 15;

/// Number of a VM on its host, from 1.
pub type Index = u16;

/// Where VMs get their names, addresses and ports from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetPlan {
    tap_prefix: String,
    base: Ipv4Addr,
    prefix: u8,
    rows: u32,
    port_base: u16,
    max_vms: Index,
}

/// Why a plan cannot work.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// Interface names would be invalid or too long.
    #[error("tap prefix {0:?} must be 1 to 10 lower-case letters")]
    TapPrefix(String),
    /// Not a usable network.
    #[error("subnet {0:?} must be an IPv4 network like 10.200.0.0/16, with a prefix of 8 to 24")]
    Subnet(String),
    /// Fewer networks or ports than VMs.
    #[error("{max_vms} VMs do not fit: {what} has room for {room}; lower FUSE_MAX_VMS")]
    TooSmall {
        /// The configured ceiling.
        max_vms: Index,
        /// What is too small.
        what: &'static str,
        /// How many would fit.
        room: u32,
    },
}

/// Everything that follows from a VM's number. Stored with the VM, so that a changed plan leaves
/// existing VMs where they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The number.
    pub index: Index,
    /// Interface name on the host.
    pub tap: String,
    /// Address of the host on the VM's network.
    pub host_ip: Ipv4Addr,
    /// Address of the guest.
    pub guest_ip: Ipv4Addr,
    /// Hardware address of the guest's interface.
    pub mac: MacAddr,
    /// Port of the host that leads to the guest agent's public surface.
    pub host_port: u16,
}

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr(pub [u8; 6]);

impl std::fmt::Display for MacAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        // The fixed part is upper case and the number lower case in the contract.
        write!(f, "{a:02X}:{b:02X}:{c:02X}:{d:02x}:{e:02x}:{g:02X}")
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> Self {
        mac.to_string()
    }
}

impl TryFrom<String> for MacAddr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bytes: Option<Vec<u8>> = text
            .split(':')
            .map(|part| u8::from_str_radix(part, 16).ok())
            .collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not a hardware address"))
    }
}

impl NetPlan {
    /// A plan over `subnet` (`a.b.c.d/len`).
    ///
    /// # Errors
    /// A part of the plan is malformed or too small for `max_vms`.
    pub fn new(
        tap_prefix: &str,
        subnet: &str,
        port_base: u16,
        max_vms: Index,
    ) -> Result<Self, PlanError> {
        // Letters only: a number follows, and `fcv1` must not own the devices of `fcv`.
        let letters = tap_prefix.bytes().all(|b| b.is_ascii_lowercase());
        if tap_prefix.is_empty() || tap_prefix.len() > IFNAME_MAX - 5 || !letters {
            return Err(PlanError::TapPrefix(tap_prefix.to_owned()));
        }
        let (base, prefix) =
            parse_subnet(subnet).ok_or_else(|| PlanError::Subnet(subnet.into()))?;
        let rows = 1u32 << (24 - prefix);
        let links = rows * LINKS_PER_ROW - 1;
        if u32::from(max_vms) > links {
            return Err(PlanError::TooSmall {
                max_vms,
                what: "the subnet",
                room: links,
            });
        }
        let ports = u32::from(u16::MAX - port_base);
        if u32::from(max_vms) > ports {
            return Err(PlanError::TooSmall {
                max_vms,
                what: "the port range",
                room: ports,
            });
        }
        Ok(Self {
            tap_prefix: tap_prefix.to_owned(),
            base,
            prefix,
            rows,
            port_base,
            max_vms,
        })
    }

    /// How many VMs may exist at a time.
    #[must_use]
    pub fn max_vms(&self) -> Index {
        self.max_vms
    }

    /// Ports of the host that lead to the public surfaces of VMs.
    #[must_use]
    pub fn host_ports(&self) -> RangeInclusive<u16> {
        self.port_base.saturating_add(1)..=self.port_base.saturating_add(self.max_vms)
    }

    /// The network that holds all VMs, as `a.b.c.d/len`.
    #[must_use]
    pub fn subnet(&self) -> String {
        format!("{}/{}", self.base, self.prefix)
    }

    /// What device names start with.
    #[must_use]
    pub fn tap_prefix(&self) -> &str {
        &self.tap_prefix
    }

    /// All numbers, lowest first.
    pub fn indices(&self) -> impl Iterator<Item = Index> + use<> {
        1..=self.max_vms
    }

    /// What follows from `index`.
    #[must_use]
    pub fn slot(&self, index: Index) -> Slot {
        let n = u32::from(index);
        let (row, link) = (n % self.rows, n / self.rows);
        let net = u32::from(self.base) + row * 256 + link * 4;
        let [high, low] = index.to_be_bytes();
        Slot {
            index,
            tap: format!("{}{index}", self.tap_prefix),
            host_ip: Ipv4Addr::from(net + 1),
            guest_ip: Ipv4Addr::from(net + 2),
            mac: MacAddr([0x06, 0x00, 0xac, 0x10 + high, low, 0x02]),
            host_port: self.port_base + index,
        }
    }
}

fn parse_subnet(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let address: Ipv4Addr = address.parse().ok()?;
    let prefix: u8 = prefix.parse().ok()?;
    let is_network = (8..=24).contains(&prefix) && u32::from(address) << prefix == 0;
    is_network.then_some((address, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn default_plan() -> NetPlan {
        NetPlan::new("fcv", "10.200.0.0/16", 19550, 249).unwrap()
    }

    #[test]
    fn the_first_slots_are_compatibility_facts() {
        let slot = default_plan().slot(17);
        assert_eq!(slot.tap, "fcv17");
        assert_eq!(slot.host_ip.to_string(), "10.200.17.1");
        assert_eq!(slot.guest_ip.to_string(), "10.200.17.2");
        assert_eq!(slot.mac.to_string(), "06:00:AC:10:11:02");
        assert_eq!(slot.host_port, 19567);
        assert_eq!(
            default_plan().slot(249).mac.to_string(),
            "06:00:AC:10:f9:02"
        );
        assert_eq!(default_plan().slot(249).host_port, 19799);
    }

    #[test]
    fn bad_plans_are_refused() {
        let plan = |tap, subnet, base, max| NetPlan::new(tap, subnet, base, max);
        for tap in ["", "a1", "Fcv", "a_b", "abcdefghijk"] {
            assert!(
                matches!(plan(tap, "10.0.0.0/16", 1, 1), Err(PlanError::TapPrefix(_))),
                "{tap}"
            );
        }
        for net in [
            "10.0.0.0",
            "10.0.0.1/16",
            "10.0.0.0/25",
            "::/16",
            "10.0.0.0/x",
            "0.0.0.0/0",
        ] {
            assert!(
                matches!(plan("a", net, 1, 1), Err(PlanError::Subnet(_))),
                "{net}"
            );
        }
        assert!(matches!(
            plan("a", "10.0.0.0/24", 1, 64),
            Err(PlanError::TooSmall { .. })
        ));
        assert!(matches!(
            plan("a", "10.0.0.0/16", 65500, 249),
            Err(PlanError::TooSmall { .. })
        ));
    }

    proptest! {
        #[test]
        fn slots_never_overlap(prefix in 14u8..=24, max in 1u16..2000) {
            let subnet = format!("10.0.0.0/{prefix}");
            let Ok(plan) = NetPlan::new("fcv", &subnet, 19550, max) else { return Ok(()) };
            let mut nets = HashSet::new();
            let mut macs = HashSet::new();
            for index in plan.indices() {
                let slot = plan.slot(index);
                let host = u32::from(slot.host_ip);
                prop_assert_eq!(host % 4, 1);
                prop_assert_eq!(u32::from(slot.guest_ip), host + 1);
                prop_assert_eq!(host >> (32 - prefix), u32::from(Ipv4Addr::new(10, 0, 0, 0)) >> (32 - prefix));
                prop_assert!(nets.insert(host));
                prop_assert!(macs.insert(slot.mac.0));
                prop_assert!(slot.tap.len() <= IFNAME_MAX);
            }
        }
    }
}
