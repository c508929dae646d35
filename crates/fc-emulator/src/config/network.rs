//! Network interfaces on TAP devices.

use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::RateLimiter;

/// Body of `PUT /network-interfaces/{iface_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkInterface {
    pub(crate) iface_id: String,
    /// Name of the TAP device.
    pub(crate) host_dev_name: String,
    pub(crate) guest_mac: Option<MacAddress>,
    pub(crate) rx_rate_limiter: Option<RateLimiter>,
    pub(crate) tx_rate_limiter: Option<RateLimiter>,
}

/// Body of `PATCH /network-interfaces/{iface_id}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NetworkUpdate {
    pub(crate) iface_id: String,
    pub(crate) rx_rate_limiter: Option<RateLimiter>,
    pub(crate) tx_rate_limiter: Option<RateLimiter>,
}

/// An interface that cannot be had.
#[derive(Debug, Error)]
pub(crate) enum NetworkError {
    #[error("The MAC address is already in use: {mac}")]
    MacInUse { mac: MacAddress },
    #[error("The host device name is already in use: {name}")]
    DeviceInUse { name: String },
    #[error("Open tap device {name} failed")]
    OpenTap {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "Rate limiters of network interfaces are not available in fc-emulator \
         (interface {id}); limit the TAP device on the host instead"
    )]
    RateLimiter { id: String },
    #[error("Invalid network interface ID: {id}")]
    Unknown { id: String },
}

impl NetworkInterface {
    /// Checks what can be told from the request alone.
    ///
    /// # Errors
    /// It asks for a rate limit.
    pub(crate) fn check(&self) -> Result<(), NetworkError> {
        check_limits(&self.iface_id, [self.rx_rate_limiter, self.tx_rate_limiter])
    }
}

impl NetworkUpdate {
    /// Checks what can be told from the request alone.
    ///
    /// # Errors
    /// It asks for a rate limit.
    pub(crate) fn check(&self) -> Result<(), NetworkError> {
        check_limits(&self.iface_id, [self.rx_rate_limiter, self.tx_rate_limiter])
    }
}

/// QEMU's network backends have no throttle. Limiters that limit nothing pass.
fn check_limits(id: &str, limiters: [Option<RateLimiter>; 2]) -> Result<(), NetworkError> {
    let limits = |bucket: super::TokenBucket| bucket.size != 0 && bucket.refill_time != 0;
    let limited = limiters
        .into_iter()
        .flatten()
        .flat_map(|limiter| [limiter.bandwidth, limiter.ops])
        .flatten()
        .any(limits);
    if limited {
        return Err(NetworkError::RateLimiter { id: id.to_owned() });
    }
    Ok(())
}

/// Six bytes, written as hexadecimal pairs with colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct MacAddress([u8; 6]);

/// Text that is no MAC address.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("invalid MAC address {text:?}: expected six hexadecimal pairs separated by colons")]
pub(crate) struct MacAddressError {
    text: String,
}

impl FromStr for MacAddress {
    type Err = MacAddressError;

    fn from_str(text: &str) -> Result<Self, MacAddressError> {
        let error = || MacAddressError {
            text: text.to_owned(),
        };
        let mut bytes = [0; 6];
        let mut pairs = text.split(':');
        for byte in &mut bytes {
            let pair = pairs
                .next()
                .filter(|pair| pair.len() == 2)
                .ok_or_else(error)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        match pairs.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(error()),
        }
    }
}

impl TryFrom<String> for MacAddress {
    type Error = MacAddressError;

    fn try_from(text: String) -> Result<Self, MacAddressError> {
        text.parse()
    }
}

impl From<MacAddress> for String {
    fn from(mac: MacAddress) -> Self {
        mac.to_string()
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_six_pairs() {
        let mac: MacAddress = "06:00:AC:10:00:02".parse().unwrap();
        assert_eq!(mac.to_string(), "06:00:ac:10:00:02");
        for bad in [
            "",
            "06:00:ac:10:00",
            "06:00:ac:10:00:02:03",
            "6:0:ac:10:0:2",
            "zz:00:ac:10:00:02",
        ] {
            assert!(bad.parse::<MacAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_limiters_that_limit_are_refused() {
        let interface = |limiter: &str| {
            serde_json::from_str::<NetworkInterface>(&format!(
                r#"{{"iface_id":"e","host_dev_name":"t","rx_rate_limiter":{limiter}}}"#
            ))
            .unwrap()
            .check()
        };
        assert!(interface("{}").is_ok());
        assert!(interface(r#"{"ops":{"size":0,"refill_time":0}}"#).is_ok());
        assert!(interface(r#"{"ops":{"size":1,"refill_time":1}}"#).is_err());
    }
}
