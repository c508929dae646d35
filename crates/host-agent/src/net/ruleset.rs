//! The agent's nftables table as text, and how to tell whether the kernel still has it.
//!
//! ```text
//! prerouting raw   from a tap: IPv4 of exactly that guest's address and MAC, not to loopback; else drop
//! prerouting nat   not from a tap, to one of our addresses: port -> guest ip . port
//! output nat       the same for the host's own connections, 127.0.0.1 included
//! postrouting nat  loopback-sourced into a tap, and guests' egress: masquerade
//! forward          tap -> tap: drop; tap -> link-local (cloud metadata): drop; tap -> out: accept;
//!                  into a tap: answers and published ports only
//! input            from a tap: answers only, so no service of the host is reachable
//! ```
//!
//! Published ports are map elements, so adding or removing one is one element and a lookup costs
//! the same with one VM or with thousands. All values are typed (numbers, addresses, names checked
//! by the plan), so nothing a caller sends can become nft syntax.

use std::collections::{BTreeMap, BTreeSet};

use fuse_wire_host::start_agent::Protocol;
use serde_json::{Value, json};

use super::plan::{Index, Slot};

/// A port of the host that leads to a port of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forward {
    /// Port on the host.
    pub host_port: u16,
    /// Port in the guest.
    pub guest_port: u16,
    /// Whether the forward is for UDP rather than TCP.
    pub udp: bool,
}

impl Forward {
    /// A forward for `protocol`.
    #[must_use]
    pub fn new(host_port: u16, guest_port: u16, protocol: Protocol) -> Self {
        Self {
            host_port,
            guest_port,
            udp: protocol == Protocol::Udp,
        }
    }

    fn map(self) -> &'static str {
        if self.udp { "udp_ports" } else { "tcp_ports" }
    }
}

/// A VM as the rules see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Its device and addresses.
    pub slot: Slot,
    /// Ports that lead to it.
    pub forwards: BTreeSet<Forward>,
}

/// All VMs of the host, by number.
pub(super) type Bindings = BTreeMap<Index, Binding>;

/// Rules of the table, counted over its chains; see [`matches()`].
const RULES: usize = 16;

impl Binding {
    fn guest_element(&self) -> String {
        let mac = self.slot.mac.to_string().to_lowercase();
        format!("\"{}\" . {} . {mac}", self.slot.tap, self.slot.guest_ip)
    }

    fn forward_element(&self, forward: Forward) -> String {
        format!(
            "{} : {} . {}",
            forward.host_port, self.slot.guest_ip, forward.guest_port
        )
    }
}

/// Script that replaces the whole table in one transaction.
pub(super) fn replace(table: &str, subnet: &str, bindings: &Bindings) -> String {
    let list = |items: Vec<String>| match items.is_empty() {
        true => String::new(),
        false => format!("elements = {{ {} }}", items.join(", ")),
    };
    let taps = list(
        bindings
            .values()
            .map(|b| format!("\"{}\"", b.slot.tap))
            .collect(),
    );
    let guests = list(bindings.values().map(Binding::guest_element).collect());
    let ports = |udp: bool| {
        let each = |b: &Binding| -> Vec<String> {
            let wanted = b.forwards.iter().filter(|f| f.udp == udp);
            wanted.map(|f| b.forward_element(*f)).collect()
        };
        list(bindings.values().flat_map(each).collect())
    };
    let (tcp, udp) = (ports(false), ports(true));
    format!(
        r#"add table inet {table}
delete table inet {table}
table inet {table} {{
  set taps {{ type ifname; {taps} }}
  set guests {{ type ifname . ipv4_addr . ether_addr; {guests} }}
  map tcp_ports {{ type inet_service : ipv4_addr . inet_service; {tcp} }}
  map udp_ports {{ type inet_service : ipv4_addr . inet_service; {udp} }}
  chain origin {{
    type filter hook prerouting priority raw; policy accept;
    iifname != @taps return
    iifname . ip saddr . ether saddr != @guests drop
    ip daddr 127.0.0.0/8 drop
    meta nfproto != ipv4 drop
  }}
  chain arriving {{
    type nat hook prerouting priority dstnat; policy accept;
    iifname != @taps fib daddr type local dnat ip to tcp dport map @tcp_ports
    iifname != @taps fib daddr type local dnat ip to udp dport map @udp_ports
  }}
  chain outgoing {{
    type nat hook output priority -100; policy accept;
    fib daddr type local dnat ip to tcp dport map @tcp_ports
    fib daddr type local dnat ip to udp dport map @udp_ports
  }}
  chain leaving {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname @taps ip saddr 127.0.0.0/8 masquerade
    ip saddr {subnet} oifname != @taps masquerade
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname @taps oifname @taps drop
    iifname @taps ip daddr 169.254.0.0/16 drop
    oifname @taps ct state established,related accept
    oifname @taps ct status dnat accept
    oifname @taps drop
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname @taps ct state != {{ established, related }} drop
  }}
}}
"#
    )
}

/// Script that turns one VM's elements from `old` into `new`; empty when nothing differs.
pub(super) fn change(table: &str, old: Option<&Binding>, new: Option<&Binding>) -> String {
    let mut script = String::new();
    let mut line = |verb: &str, set: &str, element: &str| {
        script.push_str(&format!(
            "{verb} element inet {table} {set} {{ {element} }}\n"
        ));
    };
    let forwards = |binding: Option<&Binding>| -> BTreeSet<Forward> {
        binding.map(|b| b.forwards.clone()).unwrap_or_default()
    };
    let slot = |binding: Option<&Binding>| binding.map(|b| b.slot.clone());
    let same_slot = slot(old) == slot(new);
    if let Some(old) = old {
        for forward in &old.forwards {
            if !same_slot || !forwards(new).contains(forward) {
                line("delete", forward.map(), &forward.host_port.to_string());
            }
        }
        if !same_slot {
            line("delete", "guests", &old.guest_element());
            line("delete", "taps", &format!("\"{}\"", old.slot.tap));
        }
    }
    if let Some(binding) = new {
        if !same_slot {
            line("add", "taps", &format!("\"{}\"", binding.slot.tap));
            line("add", "guests", &binding.guest_element());
        }
        for forward in &binding.forwards {
            if !same_slot || !forwards(old).contains(forward) {
                line("add", forward.map(), &binding.forward_element(*forward));
            }
        }
    }
    script
}

/// Names of chains in a listing (`nft -j list chains`) that see forwarded IPv4 packets and drop
/// what they do not know, other than those of `table`.
pub(super) fn dropping_chains(listing: &Value, table: &str) -> Vec<String> {
    let items = listing
        .get("nftables")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let text = |chain: &Value, field: &str| -> String {
        chain
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let chains = items.iter().filter_map(|item| item.get("chain"));
    let dropping = chains.filter(|chain| {
        text(chain, "hook") == "forward"
            && text(chain, "policy") == "drop"
            && matches!(text(chain, "family").as_str(), "ip" | "inet")
            && text(chain, "table") != table
    });
    let name = |chain: &Value| {
        ["family", "table", "name"]
            .map(|field| text(chain, field))
            .join(" ")
    };
    dropping.map(name).collect()
}

/// Whether a listing (`nft -j list table`) holds what [`replace`] would make: every element, and
/// as many rules. The rules' own wording is not compared: who edits one by hand means it.
pub(super) fn matches(listing: &Value, bindings: &Bindings) -> bool {
    let Some(items) = listing.get("nftables").and_then(Value::as_array) else {
        return false;
    };
    let elements = |kind: &str, name: &str| -> Option<BTreeSet<String>> {
        let set = items.iter().filter_map(|item| item.get(kind));
        let set = set.filter(|set| set.get("name").and_then(Value::as_str) == Some(name));
        let elements = set.map(|set| set.get("elem").and_then(Value::as_array));
        let mut elements = elements.map(|list| list.cloned().unwrap_or_default());
        elements
            .next()
            .map(|list| list.iter().map(Value::to_string).collect())
    };
    let wanted = |each: &dyn Fn(&Binding) -> Vec<Value>| -> Option<BTreeSet<String>> {
        Some(
            bindings
                .values()
                .flat_map(each)
                .map(|v| v.to_string())
                .collect(),
        )
    };
    let ports = |udp: bool| {
        wanted(&move |b: &Binding| {
            let ip = b.slot.guest_ip.to_string();
            let listed = |f: &Forward| json!([f.host_port, {"concat": [ip, f.guest_port]}]);
            b.forwards
                .iter()
                .filter(|f| f.udp == udp)
                .map(listed)
                .collect()
        })
    };
    let guest = |b: &Binding| {
        let mac = b.slot.mac.to_string().to_lowercase();
        vec![json!({"concat": [b.slot.tap, b.slot.guest_ip.to_string(), mac]})]
    };
    items
        .iter()
        .filter(|item| item.get("rule").is_some())
        .count()
        == RULES
        && elements("set", "taps") == wanted(&|b: &Binding| vec![json!(b.slot.tap)])
        && elements("set", "guests") == wanted(&guest)
        && elements("map", "tcp_ports") == ports(false)
        && elements("map", "udp_ports") == ports(true)
}

#[cfg(test)]
mod tests;
