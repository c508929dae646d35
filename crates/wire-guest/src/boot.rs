//! What the host tells the guest on the kernel command line.
//!
//! The host agent writes it with [`BootParams::to_cmdline`], `fused` reads
//! `/proc/cmdline` with [`BootParams::from_cmdline`]. Values never hold
//! secrets: every process in the guest can read the command line.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use thiserror::Error;

/// Arguments that belong on every guest's command line, whatever the VM.
///
/// A reboot request or a panic ends the VMM (`reboot=k panic=1`). The rest saves
/// time on every boot: no self-tests of ciphers, no test whether the timer's
/// interrupt arrives, and no search for serial ports, mice and keyboards that no
/// VM has. Under emulation that is a fifth of the kernel's share of a boot.
pub const KERNEL_ARGS: &str = "console=ttyS0 reboot=k panic=1 quiet loglevel=4 \
     cryptomgr.notests no_timer_check 8250.nr_uarts=1 \
     i8042.noaux i8042.nomux i8042.nopnp i8042.dumbkbd";

/// Longest command line that the x86 kernel takes, in bytes.
pub const CMDLINE_MAX: usize = 2047;

/// Identity and network of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootParams {
    /// The host agent's id of the VM.
    pub vm_id: String,
    /// Host name inside the guest.
    pub hostname: String,
    /// The guest's network, absent for a guest without a network device.
    pub network: Option<Network>,
}

/// Address plan of the guest's only interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Address of `eth0`.
    pub address: Ipv4Addr,
    /// Prefix length of `address`, at most 32.
    pub prefix: u8,
    /// Default gateway.
    pub gateway: Ipv4Addr,
    /// Name servers in order of preference; may be empty.
    pub dns: Vec<IpAddr>,
}

/// Why a command line does not describe a guest.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BootParamError {
    /// A parameter that must be there is not.
    #[error("kernel command line has no {0}")]
    Missing(&'static str),
    /// A parameter has a value that cannot be read.
    #[error("kernel parameter {name}={value:?} is not {expected}")]
    Invalid {
        /// Parameter name.
        name: &'static str,
        /// What stood there.
        value: String,
        /// What should stand there.
        expected: &'static str,
    },
}

const VM: &str = "fuse.vm";
const HOSTNAME: &str = "fuse.hostname";
const IP: &str = "fuse.ip";
const GATEWAY: &str = "fuse.gw";
const DNS: &str = "fuse.dns";

impl BootParams {
    /// The parameters as command line text, without [`KERNEL_ARGS`].
    ///
    /// # Errors
    /// A value that would not survive the command line (empty, or holding
    /// white space, quotes or control characters), or a prefix above 32.
    pub fn to_cmdline(&self) -> Result<String, BootParamError> {
        let mut words = vec![
            format!("{VM}={}", checked_word(VM, &self.vm_id)?),
            format!("{HOSTNAME}={}", checked_word(HOSTNAME, &self.hostname)?),
        ];
        if let Some(network) = &self.network {
            if network.prefix > 32 {
                return Err(invalid(IP, network.prefix, "an IPv4 address/prefix"));
            }
            words.push(format!("{IP}={}/{}", network.address, network.prefix));
            words.push(format!("{GATEWAY}={}", network.gateway));
            if !network.dns.is_empty() {
                let servers: Vec<String> = network.dns.iter().map(ToString::to_string).collect();
                words.push(format!("{DNS}={}", servers.join(",")));
            }
        }
        Ok(words.join(" "))
    }

    /// Reads the parameters from a whole kernel command line. Words of others
    /// are ignored; of a repeated parameter the last one counts, as the kernel
    /// does it.
    ///
    /// # Errors
    /// A missing `fuse.vm`, an address without a gateway or the reverse, or a
    /// value that cannot be read.
    pub fn from_cmdline(cmdline: &str) -> Result<Self, BootParamError> {
        let value = |name: &str| {
            cmdline
                .split_ascii_whitespace()
                .filter_map(|word| word.split_once('='))
                .filter(|(key, _)| *key == name)
                .map(|(_, value)| value)
                .next_back()
        };
        let vm_id = checked_word(VM, value(VM).ok_or(BootParamError::Missing(VM))?)?.to_owned();
        let hostname = match value(HOSTNAME) {
            Some(name) => checked_word(HOSTNAME, name)?.to_owned(),
            None => vm_id.clone(),
        };
        let network = match (value(IP), value(GATEWAY)) {
            (None, None) => None,
            (None, Some(_)) => return Err(BootParamError::Missing(IP)),
            (Some(_), None) => return Err(BootParamError::Missing(GATEWAY)),
            (Some(ip), Some(gateway)) => Some(Network::parse(ip, gateway, value(DNS))?),
        };
        Ok(Self {
            vm_id,
            hostname,
            network,
        })
    }
}

impl Network {
    fn parse(ip: &str, gateway: &str, dns: Option<&str>) -> Result<Self, BootParamError> {
        let bad_ip = || invalid(IP, ip, "an IPv4 address/prefix");
        let (address, prefix) = ip.split_once('/').ok_or_else(bad_ip)?;
        let prefix: u8 = prefix.parse().map_err(|_| bad_ip())?;
        if prefix > 32 {
            return Err(bad_ip());
        }
        let dns = match dns {
            None | Some("") => Vec::new(),
            Some(list) => list
                .split(',')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map_err(|_| invalid(DNS, list, "a comma-separated list of addresses"))?,
        };
        Ok(Self {
            address: address.parse().map_err(|_| bad_ip())?,
            prefix,
            gateway: gateway
                .parse()
                .map_err(|_| invalid(GATEWAY, gateway, "an IPv4 address"))?,
            dns,
        })
    }
}

fn checked_word<'a>(name: &'static str, value: &'a str) -> Result<&'a str, BootParamError> {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '\\');
    if value.is_empty() || !value.chars().all(plain) {
        return Err(invalid(name, value, "one plain word"));
    }
    Ok(value)
}

fn invalid(name: &'static str, value: impl fmt::Display, expected: &'static str) -> BootParamError {
    BootParamError::Invalid {
        name,
        value: value.to_string(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn network() -> impl Strategy<Value = Option<Network>> {
        let dns = prop::collection::vec(any::<IpAddr>(), 0..4);
        prop::option::of(
            (any::<Ipv4Addr>(), 0u8..=32, any::<Ipv4Addr>(), dns).prop_map(
                |(address, prefix, gateway, dns)| Network {
                    address,
                    prefix,
                    gateway,
                    dns,
                },
            ),
        )
    }

    proptest! {
        #[test]
        fn survives_the_command_line(
            vm_id in "[a-z0-9-]{1,60}",
            hostname in "[a-z0-9.-]{1,60}",
            network in network(),
            noise in "[a-z]{0,8}",
        ) {
            let params = BootParams { vm_id, hostname, network };
            let text = params.to_cmdline().unwrap();
            let cmdline = format!("{KERNEL_ARGS} {noise} {text} fuse.later=x y=z\n");
            prop_assert_eq!(BootParams::from_cmdline(&cmdline).unwrap(), params);
        }

        #[test]
        fn never_panics(cmdline in "\\PC*") {
            drop(BootParams::from_cmdline(&cmdline));
        }
    }

    #[test]
    fn refuses_what_it_cannot_read() {
        let of = |text: &str| BootParams::from_cmdline(text).unwrap_err();
        assert_eq!(of("console=ttyS0"), BootParamError::Missing("fuse.vm"));
        assert_eq!(
            of("fuse.vm=a fuse.ip=10.0.0.2/30"),
            BootParamError::Missing("fuse.gw")
        );
        let bad = of("fuse.vm=a fuse.ip=10.0.0.2/40 fuse.gw=10.0.0.1");
        assert!(bad.to_string().contains("fuse.ip"), "{bad}");
        let word = BootParams {
            vm_id: "a b".into(),
            hostname: "h".into(),
            network: None,
        };
        assert!(word.to_cmdline().is_err());
    }

    #[test]
    fn the_hostname_defaults_to_the_vm() {
        let params = BootParams::from_cmdline("fuse.vm=vm-1").unwrap();
        assert_eq!((params.hostname.as_str(), params.network), ("vm-1", None));
    }
}
