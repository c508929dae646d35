//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Where a function is on its host: `0000:65:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Text that is no address.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a PCI address like 0000:65:00.0")]
pub struct PciAddressError(pub String);

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// Reads an address in any case, with or without a domain. `nvidia-smi` writes domains with
    /// eight digits, of which the kernel shows the lower four.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| PciAddressError(text.chars().take(40).collect()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (place, function) = text.split_once('.')?;
    let parts: Vec<&str> = place.split(':').collect();
    let (domain, bus, device) = match parts[..] {
        [bus, device] => ("0000", bus, device),
        [domain, bus, device] => (domain, bus, device),
        _ => return None,
    };
    if !(4..=8).contains(&domain.len()) {
        return None;
    }
    let domain = if domain.len() == 8 {
        hex(&domain[..4], 4)?;
        &domain[4..]
    } else {
        domain
    };
    let address = PciAddress {
        domain: hex(domain, domain.len())?,
        bus: u8::try_from(hex(bus, 2)?).ok()?,
        device: u8::try_from(hex(device, 2)?).ok()?,
        function: u8::try_from(hex(function, 1)?).ok()?,
    };
    (address.device < 32 && address.function < 8).then_some(address)
}

/// Exactly so many hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u32> {
    let all = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    all.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl TryFrom<String> for PciAddress {
    type Error = PciAddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn address() -> impl Strategy<Value = PciAddress> {
        (0..0x1_0000u32, any::<u8>(), 0..32u8, 0..8u8).prop_map(
            |(domain, bus, device, function)| PciAddress {
                domain,
                bus,
                device,
                function,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(address in address()) {
            prop_assert_eq!(address.to_string().parse(), Ok(address));
            prop_assert_eq!(address.to_string().to_uppercase().parse(), Ok(address));
            prop_assert_eq!(format!("0000{address}").parse(), Ok(address));
        }

        #[test]
        fn no_text_panics_and_what_is_read_has_one_form(text in "\\PC{0,30}|[0-9a-fA-F:.]{0,16}") {
            if let Ok(address) = text.parse::<PciAddress>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }

    #[test]
    fn forms_of_one_address() {
        let want: PciAddress = "0000:3b:00.1".parse().unwrap();
        for text in ["3B:00.1", "0000:3B:00.1", "00000000:3B:00.1"] {
            assert_eq!(text.parse(), Ok(want), "{text}");
        }
        for text in [
            "",
            "3b:00",
            "3b:20.0",
            "3b:00.8",
            "0:3b:00.0",
            "3b:00.0/../x",
            "+b:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
        assert_eq!(
            "10000:e1:00.0".parse::<PciAddress>().unwrap().to_string(),
            "10000:e1:00.0"
        );
    }
}
