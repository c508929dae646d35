//! What a create request says about the workload: health probe, desktop, published
//! ports, egress.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Violation, grammar,
    json::{is_zero, null_default, optional_object},
};

/// A probe that runs in the guest. Exactly one of `http` and `exec`; zero means the
/// guest agent's default, the server fills in nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Healthcheck {
    /// GET on a port of the guest's loopback.
    #[serde(
        deserialize_with = "optional_object",
        skip_serializing_if = "Option::is_none"
    )]
    pub http: Option<HttpProbe>,
    /// Argument vector; status 0 passes.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub exec: Vec<String>,
    /// Seconds between probes.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub interval_seconds: i64,
    /// Seconds before one probe counts as failed.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub timeout_seconds: i64,
    /// Failures in a row until the verdict is `failing`.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub retries: i64,
    /// Seconds after the start in which failures do not count.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub start_period_seconds: i64,
}

/// `http` of a [`Healthcheck`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct HttpProbe {
    /// Guest port.
    #[serde(deserialize_with = "null_default")]
    #[schema(required = true, minimum = 1, maximum = 65535)]
    pub port: i64,
    /// Path with its leading slash; empty = `/`.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub path: String,
}

impl Healthcheck {
    pub(crate) fn check(&self) -> Result<(), Violation> {
        match (&self.http, self.exec.is_empty()) {
            (Some(_), false) | (None, true) => {
                return Err(Violation::invalid(
                    "healthcheck: exactly one of http or exec is required",
                ));
            }
            (Some(http), true) => http.check()?,
            (None, false) => {
                if self
                    .exec
                    .iter()
                    .any(|arg| arg.trim().is_empty() || arg.contains('\0'))
                {
                    return Err(Violation::invalid(
                        "healthcheck.exec must not have blank elements",
                    ));
                }
            }
        }
        for (field, value) in [
            ("interval_seconds", self.interval_seconds),
            ("timeout_seconds", self.timeout_seconds),
            ("retries", self.retries),
            ("start_period_seconds", self.start_period_seconds),
        ] {
            if value < 0 {
                return Err(Violation::Invalid(format!(
                    "healthcheck.{field} must not be negative"
                )));
            }
        }
        let both_set = self.interval_seconds > 0 && self.timeout_seconds > 0;
        if both_set && self.timeout_seconds > self.interval_seconds {
            return Err(Violation::invalid(
                "healthcheck.timeout_seconds must not exceed healthcheck.interval_seconds",
            ));
        }
        Ok(())
    }
}

impl HttpProbe {
    fn check(&self) -> Result<(), Violation> {
        if !(1..=65_535).contains(&self.port) {
            return Err(Violation::invalid(
                "healthcheck.http.port must be between 1 and 65535",
            ));
        }
        if !self.path.is_empty() && !self.path.starts_with('/') {
            return Err(Violation::invalid(
                "healthcheck.http.path must start with /",
            ));
        }
        Ok(())
    }
}

/// A screen in the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Desktop {
    /// Pixels, 320 to 3840.
    #[serde(deserialize_with = "null_default")]
    #[schema(required = true, minimum = 320, maximum = 3840)]
    pub width: i64,
    /// Pixels, 320 to 3840.
    #[serde(deserialize_with = "null_default")]
    #[schema(required = true, minimum = 320, maximum = 3840)]
    pub height: i64,
    /// Window manager: `mutter`, `xfwm4` or `openbox`; empty = the image's default.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub wm: String,
}

impl Desktop {
    pub(crate) fn check(&self) -> Result<(), Violation> {
        for (field, value) in [("width", self.width), ("height", self.height)] {
            if !(320..=3840).contains(&value) {
                return Err(Violation::Invalid(format!(
                    "desktop.{field} must be between 320 and 3840"
                )));
            }
        }
        if !matches!(self.wm.as_str(), "" | "mutter" | "xfwm4" | "openbox") {
            return Err(Violation::invalid(
                "desktop.wm must be one of mutter, xfwm4, openbox",
            ));
        }
        Ok(())
    }
}

/// A guest port to publish on the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Expose {
    /// Guest port, 1 to 65535.
    #[serde(deserialize_with = "null_default")]
    #[schema(required = true, minimum = 1, maximum = 65535)]
    pub port: i64,
    /// Name of the endpoint; empty or a DNS label, unique.
    #[serde(
        rename = "as",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub name: String,
    /// `tcp` (also when empty) or `udp`.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub protocol: String,
}

pub(crate) fn check_expose(entries: &[Expose]) -> Result<(), Violation> {
    let mut names = BTreeSet::new();
    let mut ports = BTreeSet::new();
    for (i, entry) in entries.iter().enumerate() {
        if !(1..=65_535).contains(&entry.port) {
            return Err(Violation::Invalid(format!(
                "expose[{i}].port must be between 1 and 65535"
            )));
        }
        let protocol = match entry.protocol.as_str() {
            "" | "tcp" => "tcp",
            "udp" => "udp",
            _ => {
                return Err(Violation::Invalid(format!(
                    "expose[{i}].protocol must be tcp or udp"
                )));
            }
        };
        if !entry.name.is_empty() && !grammar::is_dns_label(&entry.name) {
            return Err(Violation::Invalid(format!(
                "expose[{i}].as must be a DNS label (lowercase letters, digits and inner dashes)"
            )));
        }
        if !entry.name.is_empty() && !names.insert(entry.name.as_str()) {
            return Err(Violation::Invalid(format!("expose[{i}].as is used twice")));
        }
        if !ports.insert((entry.port, protocol)) {
            return Err(Violation::Invalid(format!(
                "expose[{i}]: port {} is listed twice for {protocol}",
                entry.port
            )));
        }
    }
    Ok(())
}

/// How the guest reaches the outside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Egress {
    /// Empty or `direct`, or `proxy`.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub mode: String,
    /// Which proxy; only and always with `proxy`.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub provider: String,
    /// `socks5` (also when empty) or `http`; only with `proxy`.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub protocol: String,
}

impl Egress {
    /// Whether traffic must go through a proxy.
    #[must_use]
    pub fn is_proxy(&self) -> bool {
        self.mode == "proxy"
    }

    pub(crate) fn check(&self) -> Result<(), Violation> {
        match self.mode.as_str() {
            "" | "direct" => {
                if !self.provider.is_empty() || !self.protocol.is_empty() {
                    return Err(Violation::invalid(
                        "egress: provider and protocol require mode \"proxy\"",
                    ));
                }
                return Ok(());
            }
            "proxy" => {}
            _ => return Err(Violation::invalid("egress.mode must be direct or proxy")),
        }
        match self.provider.as_str() {
            "mock" => {}
            "" => {
                return Err(Violation::invalid(
                    "egress.provider is required with mode \"proxy\"",
                ));
            }
            "cloudflare-warp" => {
                return Err(Violation::invalid(
                    "egress.provider \"cloudflare-warp\" is reserved",
                ));
            }
            _ => return Err(Violation::invalid("egress.provider must be mock")),
        }
        if !matches!(self.protocol.as_str(), "" | "socks5" | "http") {
            return Err(Violation::invalid("egress.protocol must be socks5 or http"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(json: &str) -> Result<(), String> {
        let probe: Healthcheck = crate::decode(json.as_bytes()).unwrap();
        probe.check().map_err(|e| e.to_string())
    }

    #[test]
    fn healthchecks() {
        for ok in [
            r#"{"http":{"port":80}}"#,
            r#"{"http":{"port":65535,"path":"/x"}}"#,
            r#"{"exec":["true"],"interval_seconds":5,"timeout_seconds":5}"#,
            r#"{"exec":["true"],"timeout_seconds":50}"#,
        ] {
            assert_eq!(probe(ok), Ok(()), "{ok}");
        }
        for bad in [
            "{}",
            r#"{"exec":[]}"#,
            r#"{"http":{"port":80},"exec":["true"]}"#,
            r#"{"http":{}}"#,
            r#"{"http":{"port":65536}}"#,
            r#"{"http":{"port":80,"path":"x"}}"#,
            r#"{"exec":["a"," "]}"#,
            r#"{"exec":["a"],"retries":-1}"#,
            r#"{"exec":["a"],"interval_seconds":2,"timeout_seconds":3}"#,
        ] {
            assert!(probe(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_probe_is_written_without_unset_fields() {
        let text = r#"{"http":{"port":80},"retries":2}"#;
        let probe: Healthcheck = crate::decode(text.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&probe).unwrap(), text);
    }

    #[test]
    fn desktops() {
        let desktop = |width, height, wm: &str| {
            Desktop {
                width,
                height,
                wm: wm.into(),
            }
            .check()
        };
        assert!(desktop(320, 3840, "").is_ok());
        assert!(desktop(1024, 768, "xfwm4").is_ok());
        assert!(desktop(319, 768, "").is_err());
        assert!(desktop(1024, 0, "").is_err());
        assert!(desktop(1024, 768, "i3").is_err());
    }

    #[test]
    fn exposes() {
        let entry = |port, name: &str, protocol: &str| Expose {
            port,
            name: name.into(),
            protocol: protocol.into(),
        };
        assert!(check_expose(&[entry(80, "web", ""), entry(80, "", "udp")]).is_ok());
        for bad in [
            vec![entry(0, "", "")],
            vec![entry(70_000, "", "")],
            vec![entry(80, "Web", "")],
            vec![entry(80, "", "sctp")],
            vec![entry(80, "", ""), entry(80, "", "tcp")],
            vec![entry(80, "a", ""), entry(81, "a", "")],
        ] {
            assert!(check_expose(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn egresses() {
        let egress = |mode: &str, provider: &str, protocol: &str| {
            Egress {
                mode: mode.into(),
                provider: provider.into(),
                protocol: protocol.into(),
            }
            .check()
            .is_ok()
        };
        assert!(egress("", "", ""));
        assert!(egress("direct", "", ""));
        assert!(egress("proxy", "mock", ""));
        assert!(egress("proxy", "mock", "http"));
        assert!(!egress("direct", "mock", ""));
        assert!(!egress("", "", "http"));
        assert!(!egress("proxy", "", ""));
        assert!(!egress("proxy", "cloudflare-warp", ""));
        assert!(!egress("proxy", "mock", "ftp"));
        assert!(!egress("tunnel", "", ""));
    }
}
