//! Lists of address blocks, as settings name them.

use std::net::IpAddr;

/// An address block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    network: u128,
    /// Leading bits that count, over the 128 bits of the mapped form.
    bits: u32,
    v4: bool,
}

/// The list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressBlocks(Vec<Block>);

impl AddressBlocks {
    /// Reads a comma list of blocks like `10.0.0.0/8`; blanks are skipped.
    ///
    /// # Errors
    /// The first entry that is not a block.
    pub fn parse(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .map(|entry| {
                Block::parse(entry).ok_or_else(|| {
                    format!("{entry:?} is not an address block (examples: 10.0.0.0/8, fd00::/8)")
                })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// How many blocks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them holds this address.
    pub(super) fn hold(&self, address: IpAddr) -> bool {
        // An IPv4 peer of a dual-stack socket looks like IPv6.
        let address = address.to_canonical();
        self.0.iter().any(|block| block.holds(address))
    }
}

impl Block {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        // Rust takes a plus sign, too.
        let is_number = bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits: u32 = bits
            .parse()
            .ok()
            .filter(|bits| is_number && *bits <= width)?;
        let bits = bits + (128 - width);
        let network = wide(address) & mask(bits);
        Some(Self {
            network,
            bits,
            // Also one that is written in the mapped form: peers of it are.
            v4: bits >= 96 && network >> 32 == 0xffff,
        })
    }

    fn holds(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.v4 && wide(address) & mask(self.bits) == self.network
    }
}

fn wide(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn mask(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(list: &str, address: &str) -> bool {
        AddressBlocks::parse(list)
            .unwrap()
            .hold(address.parse().unwrap())
    }

    #[test]
    fn blocks() {
        let list = "10.1.0.0/16, 192.0.2.7/32,, fd00::/8";
        for inside in ["10.1.2.3", "192.0.2.7", "fd12::1", "::ffff:10.1.2.3"] {
            assert!(hold(list, inside), "{inside}");
        }
        for outside in ["10.2.0.1", "192.0.2.8", "fe80::1", "::1", "::ffff:10.2.0.1"] {
            assert!(!hold(list, outside), "{outside}");
        }
        assert!(!hold("", "8.8.8.8"));
        assert!(hold("0.0.0.0/0", "8.8.8.8") && !hold("0.0.0.0/0", "::1"));
        assert!(hold("::/0", "::1"));
        for mapped in ["::ffff:10.0.0.0/104", "::ffff:a01:0/112"] {
            assert!(hold(mapped, "10.1.2.3"), "{mapped}");
            assert!(hold(mapped, "::ffff:10.1.2.3"), "{mapped}");
            assert!(!hold(mapped, "11.1.2.3") && !hold(mapped, "::1"));
        }
        // Host bits do not matter.
        assert!(hold("10.1.9.9/16", "10.1.2.3"));
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in [
            "10.0.0.0",
            "10.0.0.0/33",
            "::/129",
            "x/8",
            "10.0.0/8",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "10.0.0.0/8/8",
            "fd00::%1/64",
        ] {
            assert!(AddressBlocks::parse(bad).is_err(), "{bad}");
        }
    }
}
