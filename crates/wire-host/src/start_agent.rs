//! `POST /v1/vm/{id}/start-agent`: start the guest agent's public surface, publish ports.
//!
//! Calling it again restarts the surface, which is how new credentials take effect. Publishing is
//! idempotent per `(as, port)`: a port that is published already keeps its host port.

use std::collections::HashSet;

use serde::{Deserialize, Deserializer, Serialize};

/// What the surface is started with. Paths are paths in the guest.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartAgentRequest {
    /// The manifest; required.
    #[serde(default)]
    pub manifest_path: String,
    /// The secrets file; required.
    #[serde(default)]
    pub secrets_path: String,
    /// Gateway address, reported by the surface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// Certificate; plaintext when absent or the file is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_cert_path: Option<String>,
    /// Private key of the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key_path: Option<String>,
    /// Present when the surface must ask for the token in `/fuse/auth-token`, uploaded before. Only
    /// its presence counts, so that the value need not travel again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_token: Option<String>,
    /// Further arguments; a string is split at white space, never by a shell.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "arguments"
    )]
    pub extra_args: Vec<String>,
    /// Program to start instead of the guest's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_path: Option<String>,
    /// Where to fetch the program when [`Self::binary_path`] is not executable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download_url: Option<String>,
    /// Address to bind in the guest; default `0.0.0.0:9550`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// Guest ports to publish.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<Expose>,
}

impl std::fmt::Debug for StartAgentRequest {
    /// Leaves the token out, and arguments and URL, which may carry credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartAgentRequest")
            .field("manifest_path", &self.manifest_path)
            .field("listen", &self.listen)
            .field("binary_path", &self.binary_path)
            .field("has_token", &self.auth_token.is_some())
            .field("extra_args", &self.extra_args.len())
            .field("expose", &self.expose)
            .finish_non_exhaustive()
    }
}

/// A guest port to publish on the host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Expose {
    /// Port in the guest, 1..=65535.
    pub port: u16,
    /// Name of the endpoint: a DNS label, or empty.
    #[serde(rename = "as", default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Transport, `tcp` (default) or `udp`.
    #[serde(default, skip_serializing_if = "Protocol::is_tcp")]
    pub protocol: Protocol,
}

/// Transport of a published port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Whether this is the default, which older agents assume.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp)
    }
}

/// Answer of start-agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartAgentResponse {
    /// Always true.
    pub ok: bool,
    /// The published ports, in the order they were asked for.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
}

/// A published port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name it was published as.
    #[serde(rename = "as", default)]
    pub name: String,
    /// `<public host>:<host port>`.
    pub url: String,
    /// Port in the guest.
    pub port: u16,
    /// Port on the host.
    #[serde(default)]
    pub host_port: u16,
    /// Transport really published; absent means TCP.
    #[serde(default, skip_serializing_if = "Protocol::is_tcp")]
    pub protocol: Protocol,
}

impl StartAgentRequest {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// A text for the 400 that names the field.
    pub fn validate(&self) -> Result<(), String> {
        for (field, value) in [
            ("manifest_path", &self.manifest_path),
            ("secrets_path", &self.secrets_path),
        ] {
            if value.is_empty() {
                return Err(format!("missing field: {field}"));
            }
        }
        let mut seen = HashSet::new();
        for entry in &self.expose {
            if entry.port == 0 {
                return Err("expose: port must be 1 to 65535".to_owned());
            }
            if !entry.name.is_empty() && !is_dns_label(&entry.name) {
                return Err(format!("expose: {:?} is not a DNS label", entry.name));
            }
            if !seen.insert((entry.port, entry.protocol)) {
                return Err(format!("expose: port {} is listed twice", entry.port));
            }
        }
        Ok(())
    }
}

fn is_dns_label(text: &str) -> bool {
    let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let (Some(first), Some(last)) = (text.bytes().next(), text.bytes().next_back()) else {
        return false;
    };
    text.len() <= 63 && ok(first) && ok(last) && text.bytes().all(|b| ok(b) || b == b'-')
}

fn arguments<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "extra_args must be a string or a list of strings"
    )]
    enum Form {
        List(Vec<String>),
        Line(String),
        Null(()),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::List(list) => list,
        Form::Line(line) => line.split_whitespace().map(str::to_owned).collect(),
        Form::Null(()) => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(expose: &str) -> StartAgentRequest {
        serde_json::from_str(&format!(
            r#"{{"manifest_path":"/fuse/manifest.json","secrets_path":"/fuse/secrets.json","expose":{expose}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn required_fields_are_named() {
        let empty = StartAgentRequest::default();
        assert_eq!(
            empty.validate().unwrap_err(),
            "missing field: manifest_path"
        );
        let half = StartAgentRequest {
            manifest_path: "/m".into(),
            ..empty
        };
        assert_eq!(half.validate().unwrap_err(), "missing field: secrets_path");
    }

    #[test]
    fn expose_entries_are_checked() {
        assert!(
            request(r#"[{"port":80,"as":"web"},{"port":80,"protocol":"udp"}]"#)
                .validate()
                .is_ok()
        );
        for bad in [
            r#"[{"port":0}]"#,
            r#"[{"port":80,"as":"Web"}]"#,
            r#"[{"port":80,"as":"-a"}]"#,
            r#"[{"port":80},{"port":80,"as":"b"}]"#,
        ] {
            assert!(request(bad).validate().is_err(), "{bad}");
        }
    }

    #[test]
    fn extra_args_take_a_line_or_a_list() {
        let line: StartAgentRequest = serde_json::from_str(r#"{"extra_args":"--a  b"}"#).unwrap();
        let list: StartAgentRequest =
            serde_json::from_str(r#"{"extra_args":["--a","b"]}"#).unwrap();
        let null: StartAgentRequest = serde_json::from_str(r#"{"extra_args":null}"#).unwrap();
        assert_eq!(line, list);
        assert!(null.extra_args.is_empty());
    }

    #[test]
    fn debug_hides_the_token() {
        let request = StartAgentRequest {
            auth_token: Some("s3cret".into()),
            ..StartAgentRequest::default()
        };
        assert!(!format!("{request:?}").contains("s3cret"));
    }
}
