//! Ports that the host's own programs also use.
//!
//! The packet rules send a VM's ports to its guest wherever they are spoken to, 127.0.0.1 included.
//! A program of the host that got one of them from the kernel is cut off from its own clients, who
//! reach a guest instead.

use std::ops::RangeInclusive;
use std::path::Path;

/// Where the kernel takes ports from for programs that name none.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// What it leaves out of that range.
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Those of `ours` that the kernel may give to a program, from the first to the last. `None` too
/// when the kernel does not say what it gives.
pub(crate) fn shared(ours: &[RangeInclusive<u16>]) -> Option<RangeInclusive<u16>> {
    let read = |path| std::fs::read_to_string(Path::new(path)).ok();
    among(ours, &read(RANGE)?, &read(RESERVED).unwrap_or_default())
}

fn among(ours: &[RangeInclusive<u16>], range: &str, reserved: &str) -> Option<RangeInclusive<u16>> {
    let mut ends = range.split_whitespace().map_while(|end| end.parse().ok());
    let given: RangeInclusive<u16> = ends.next()?..=ends.next()?;
    let reserved: Vec<_> = reserved.trim().split(',').filter_map(one_or_many).collect();
    let mut shared = ours
        .iter()
        .flat_map(Clone::clone)
        .filter(|port| given.contains(port) && !reserved.iter().any(|kept| kept.contains(port)));
    let first = shared.next()?;
    Some(shared.fold(first..=first, |all, port| {
        port.min(*all.start())..=port.max(*all.end())
    }))
}

/// `80` or `80-90`.
fn one_or_many(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_gives_away_is_shared() {
        let all = "32768\t60999\n";
        assert_eq!(among(&[19551..=19799, 20000..=21999], all, "\n"), None);
        let low = among(&[19551..=19799, 32000..=33000], all, "");
        assert_eq!(low, Some(32768..=33000));
        assert_eq!(among(&[46001..=46249], all, "8080,46000-46300\n"), None);
        let part = among(&[46001..=46249, 50000..=50001], all, "46001-46100");
        assert_eq!(part, Some(46101..=50001));
    }

    #[test]
    fn a_kernel_that_says_nothing_of_use_shares_nothing() {
        for range in ["", "many", "1", "70000 80000"] {
            assert_eq!(among(&[1..=65535], range, "x,-,1-"), None, "{range}");
        }
    }
}
