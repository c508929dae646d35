//! The random number device.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{RateLimiter, RateLimiterError, Throttle};

/// Body of `PUT /entropy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entropy {
    pub(crate) rate_limiter: Option<RateLimiter>,
}

/// A random number device that cannot be had.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum EntropyError {
    #[error("Invalid rate limiter")]
    RateLimiter(#[source] RateLimiterError),
    #[error(
        "An operations limit of the entropy device is not available in fc-emulator; \
         limit its bandwidth"
    )]
    Operations,
}

impl Entropy {
    /// The limits; the operations part is always absent.
    ///
    /// # Errors
    /// They cannot be expressed in QEMU.
    pub(crate) fn throttle(self) -> Result<Throttle, EntropyError> {
        let limiter = self.rate_limiter.unwrap_or_default();
        let throttle = limiter.throttle().map_err(EntropyError::RateLimiter)?;
        match throttle.operations {
            Some(_) => Err(EntropyError::Operations),
            None => Ok(throttle),
        }
    }
}
