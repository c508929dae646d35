//! Token buckets, and what they come to in QEMU's leaky buckets.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Two token buckets; an absent one limits nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateLimiter {
    /// Tokens are bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth: Option<TokenBucket>,
    /// Tokens are operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ops: Option<TokenBucket>,
}

/// A bucket that refills at a constant rate. A size or a refill time of zero
/// means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenBucket {
    /// Tokens in a full bucket.
    pub(crate) size: u64,
    /// Extra tokens at the start that are never refilled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) one_time_burst: Option<u64>,
    /// Milliseconds in which an empty bucket fills up.
    pub(crate) refill_time: u64,
}

/// A rate limiter that cannot be carried over.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum RateLimiterError {
    /// QEMU's buckets start full and have no second, single-use one.
    #[error("one_time_burst is not available in fc-emulator; leave it out or set it to 0")]
    OneTimeBurst,
}

/// The limits as QEMU's block layer and its random number device take them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Throttle {
    pub(crate) bytes: Option<Rate>,
    pub(crate) operations: Option<Rate>,
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Steady rate, at least 1.
    pub(crate) per_second: u64,
    /// Tokens that may be used at once; never below `per_second`, which QEMU
    /// demands.
    pub(crate) burst: u64,
}

impl RateLimiter {
    /// Takes over the buckets that `update` names and keeps the others.
    pub(crate) fn updated(self, update: Self) -> Self {
        Self {
            bandwidth: update.bandwidth.or(self.bandwidth),
            ops: update.ops.or(self.ops),
        }
    }

    /// The same limits in QEMU's terms.
    ///
    /// # Errors
    /// A bucket has a one-time burst.
    pub(crate) fn throttle(self) -> Result<Throttle, RateLimiterError> {
        let rate = |bucket: Option<TokenBucket>| bucket.map_or(Ok(None), TokenBucket::rate);
        Ok(Throttle {
            bytes: rate(self.bandwidth)?,
            operations: rate(self.ops)?,
        })
    }
}

impl TokenBucket {
    fn rate(self) -> Result<Option<Rate>, RateLimiterError> {
        if self.size == 0 || self.refill_time == 0 {
            return Ok(None);
        }
        if self.one_time_burst.unwrap_or(0) > 0 {
            return Err(RateLimiterError::OneTimeBurst);
        }
        let per_second = (u128::from(self.size) * 1000 / u128::from(self.refill_time)).max(1);
        // QEMU takes signed 64-bit numbers and refuses rates beyond 10^15.
        let per_second = u64::try_from(per_second)
            .unwrap_or(u64::MAX)
            .min(QEMU_MAX_RATE);
        Ok(Some(Rate {
            per_second,
            burst: self.size.clamp(per_second, QEMU_MAX_RATE),
        }))
    }
}

const QEMU_MAX_RATE: u64 = 1_000_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(size: u64, refill_time: u64) -> TokenBucket {
        TokenBucket {
            size,
            one_time_burst: None,
            refill_time,
        }
    }

    fn bytes(bucket: TokenBucket) -> Result<Throttle, RateLimiterError> {
        let bandwidth = Some(bucket);
        RateLimiter {
            bandwidth,
            ops: None,
        }
        .throttle()
    }

    #[test]
    fn the_rate_is_size_over_refill_time() {
        let rate = bytes(bucket(10 << 20, 500)).unwrap().bytes.unwrap();
        assert_eq!(rate.per_second, 20 << 20);
        assert_eq!(rate.burst, 20 << 20);
        let rate = bytes(bucket(1000, 10_000)).unwrap().bytes.unwrap();
        assert_eq!((rate.per_second, rate.burst), (100, 1000));
        let rate = bytes(bucket(u64::MAX, 1)).unwrap().bytes.unwrap();
        assert_eq!(rate.per_second, QEMU_MAX_RATE);
    }

    #[test]
    fn zero_is_no_limit() {
        assert_eq!(bytes(bucket(0, 100)), Ok(Throttle::default()));
        assert_eq!(bytes(bucket(100, 0)), Ok(Throttle::default()));
    }

    #[test]
    fn a_one_time_burst_is_refused() {
        let with_burst = TokenBucket {
            one_time_burst: Some(1),
            ..bucket(100, 100)
        };
        assert_eq!(bytes(with_burst), Err(RateLimiterError::OneTimeBurst));
    }

    #[test]
    fn an_update_keeps_what_it_does_not_name() {
        let old = RateLimiter {
            bandwidth: Some(bucket(1, 1)),
            ops: Some(bucket(2, 2)),
        };
        let update = RateLimiter {
            bandwidth: Some(bucket(3, 3)),
            ops: None,
        };
        assert_eq!(old.updated(update).bandwidth, Some(bucket(3, 3)));
        assert_eq!(old.updated(update).ops, Some(bucket(2, 2)));
    }
}
