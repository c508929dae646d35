//! Slows down guessing at the login: after some failures from one address, further
//! attempts are refused unseen for the rest of a minute.
//!
//! Kept per process: replicas multiply the attempts by their number, which is few. All
//! who sit behind one proxy share its address; bearer tokens are not affected.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Failures that an address may have in a window.
const FAILURES: u32 = 10;
/// The window, from the first failure on.
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are remembered at a time.
const ADDRESSES: usize = 4096;

/// Failures by address.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    windows: Mutex<HashMap<IpAddr, Window>>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    failures: u32,
    ends: Instant,
}

impl Throttle {
    /// How long `address` has to wait; `None`: it may try.
    pub(crate) fn wait(&self, address: IpAddr) -> Option<Duration> {
        self.wait_at(address, Instant::now())
    }

    fn wait_at(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let window = self.lock().get(&source(address)).copied()?;
        (window.failures >= FAILURES && window.ends > now).then(|| window.ends - now)
    }

    /// Notes a failure.
    pub(crate) fn failed(&self, address: IpAddr) {
        self.failed_at(address, Instant::now());
    }

    fn failed_at(&self, address: IpAddr, now: Instant) {
        let mut windows = self.lock();
        if windows.len() >= ADDRESSES {
            windows.retain(|_, window| window.ends > now);
            // Still full: somebody has very many addresses, and counting does not help.
            if windows.len() >= ADDRESSES {
                windows.clear();
            }
        }
        let window = windows.entry(source(address)).or_insert(Window {
            failures: 0,
            ends: now + WINDOW,
        });
        if window.ends <= now {
            *window = Window {
                failures: 0,
                ends: now + WINDOW,
            };
        }
        window.failures += 1;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Window>> {
        // The map is whole after every operation, so a panicked holder left it usable.
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One party has one IPv4 address, or 64 bits of IPv6 to choose from.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn too_many_failures_cost_the_rest_of_the_window() {
        let throttle = Throttle::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..FAILURES {
            assert_eq!(throttle.wait_at(ip("192.0.2.1"), start), None);
            throttle.failed_at(ip("192.0.2.1"), start);
        }
        assert_eq!(
            throttle.wait_at(ip("::ffff:192.0.2.1"), after(20)),
            Some(Duration::from_secs(40))
        );
        assert_eq!(throttle.wait_at(ip("192.0.2.2"), after(20)), None);
        assert_eq!(throttle.wait_at(ip("192.0.2.1"), after(60)), None);
        throttle.failed_at(ip("192.0.2.1"), after(60));
        assert_eq!(throttle.wait_at(ip("192.0.2.1"), after(60)), None);
    }

    #[test]
    fn memory_is_bounded() {
        let throttle = Throttle::default();
        for n in 0..10_000u32 {
            throttle.failed(IpAddr::from(n.to_be_bytes()));
        }
        assert!(throttle.lock().len() <= ADDRESSES);
        for n in 0..20u16 {
            throttle.failed(IpAddr::from([0xfd00, 0, 0, 1, 0, 0, 0, n]));
        }
        assert!(throttle.wait(ip("fd00:0:0:1::77")).is_some());
        assert_eq!(throttle.wait(ip("fd00:0:0:2::1")), None);
    }
}
