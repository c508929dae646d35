//! Randomness that the host gives.
//!
//! Guests that start from the same snapshot have the same kernel random state; the host's bytes,
//! which it never gives twice, set them apart before anybody is told that the guest is there.

use std::fs::OpenOptions;
use std::io::{self, Write as _};

use crate::sys;

/// Mixes `seed` into the kernel's random numbers and makes them take effect at once. Every reader
/// of random numbers gets others from then on than it would have got without.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn apply(seed: &[u8]) -> io::Result<()> {
    let mut random = OpenOptions::new().write(true).open("/dev/urandom")?;
    random.write_all(seed)?;
    sys::reseed_random(&random)
}
