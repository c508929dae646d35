//! The part of an environment manifest that the control plane reads: `machine.env`
//! and `services`. Everything else in it is opaque and reaches the guest byte for byte.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::json::{self, null_default, object};

/// A manifest as far as it is read here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// `machine`.
    #[serde(deserialize_with = "object")]
    pub machine: Machine,
    /// Compose services by name.
    #[serde(deserialize_with = "null_default")]
    pub services: BTreeMap<String, Service>,
}

/// `machine` of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Environment of the startup script.
    #[serde(deserialize_with = "null_default")]
    pub env: BTreeMap<String, EnvSource>,
}

/// Where the value of a variable comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvSource {
    /// Literal value.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub value: String,
    /// Name of a secret of the request; wins over `value` when not empty.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub secret: String,
}

/// A compose service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Container image.
    #[serde(deserialize_with = "null_default")]
    pub image: String,
    /// Ports published one to one.
    #[serde(deserialize_with = "null_default")]
    pub ports: Vec<u16>,
    /// Argument vector.
    #[serde(deserialize_with = "null_default")]
    pub command: Vec<String>,
    /// Restart policy.
    #[serde(deserialize_with = "null_default")]
    pub restart: String,
    /// Services to start first.
    #[serde(deserialize_with = "null_default")]
    pub depends_on: Vec<String>,
    /// Container health check.
    #[serde(deserialize_with = "json::optional_object")]
    pub healthcheck: Option<ServiceHealthcheck>,
    /// Container environment.
    #[serde(deserialize_with = "null_default")]
    pub env: BTreeMap<String, EnvSource>,
}

/// Health check of a compose service; durations are compose texts like `10s`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceHealthcheck {
    /// Test command.
    #[serde(deserialize_with = "null_default")]
    pub test: Vec<String>,
    /// Time between tests.
    #[serde(deserialize_with = "null_default")]
    pub interval: String,
    /// Time limit of a test.
    #[serde(deserialize_with = "null_default")]
    pub timeout: String,
    /// Failures in a row until unhealthy.
    #[serde(deserialize_with = "null_default")]
    pub retries: i64,
}

impl Manifest {
    /// The manifest of an environment that was created without one: compact, keys in
    /// this order.
    pub const BUILT_IN: &str =
        r#"{"version":"1","machine":{"workspace":"/workspace"},"services":{}}"#;

    /// Reads a manifest.
    ///
    /// # Errors
    /// Not JSON, or one of the fields read here has the wrong type.
    pub fn parse(bytes: &[u8]) -> Result<Self, json::DecodeError> {
        json::decode_whole(bytes)
    }

    /// Names of every secret that the manifest refers to.
    #[must_use]
    pub fn required_secrets(&self) -> BTreeSet<&str> {
        let services = self
            .services
            .values()
            .flat_map(|service| service.env.values());
        self.machine
            .env
            .values()
            .chain(services)
            .map(|source| source.secret.as_str())
            .filter(|name| !name.is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_manifest_parses_and_needs_nothing() {
        let manifest = Manifest::parse(Manifest::BUILT_IN.as_bytes()).unwrap();
        assert_eq!(manifest, Manifest::default());
        assert!(manifest.required_secrets().is_empty());
    }

    #[test]
    fn secrets_of_machine_and_services_are_required() {
        let text = r#"{"x":[1],"machine":{"env":{"A":{"secret":"one"},"B":{"value":"v"}}},
            "services":{"db":{"image":"i","env":{"C":{"secret":"two"},"D":{"secret":""}}}}}"#;
        let manifest = Manifest::parse(text.as_bytes()).unwrap();
        assert_eq!(
            manifest.required_secrets().into_iter().collect::<Vec<_>>(),
            ["one", "two"]
        );
    }

    #[test]
    fn a_wrong_shape_is_refused() {
        for bad in [
            "",
            "{",
            "[]",
            r#"{"services":[]}"#,
            r#"{"machine":{"env":{"A":"x"}}}"#,
            "{} x",
        ] {
            assert!(Manifest::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
