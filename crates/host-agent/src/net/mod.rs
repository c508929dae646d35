//! Networking of VMs: the address plan, TAP devices, and the host's packet rules.
//!
//! [`plan`] decides names and addresses, [`link`] makes devices through netlink, [`firewall`] owns
//! one nftables table that is always derived from the VMs the agent knows. Nothing here knows about
//! VMs beyond a [`Slot`] and the ports that lead to it.

pub mod firewall;
pub mod link;
pub(crate) mod local_ports;
pub mod plan;
pub mod ruleset;

pub use firewall::{Firewall, FirewallError};
pub use link::{LinkError, Links};
pub use plan::{Index, NetPlan, PlanError, Slot};
pub use ruleset::{Binding, Forward};
