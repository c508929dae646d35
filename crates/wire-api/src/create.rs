//! `POST /v1/environments`: the request and its checks, in the order of the contract.
//!
//! The host pin is looked up between the two halves ([`CreateEnvironment::check_head`]
//! and [`CreateEnvironment::check_tail`]), because an unknown pin (404) ranks before
//! the checks of the second half.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Desktop, Egress, Expose, FileBody, GuestFile, Healthcheck, Manifest, Spec, Violation,
    files::{self, decode_base64},
    json::{is_zero, null_default, object, objects, optional_object},
    spec::check_printable,
    workload,
};

const MAX_SECRETS: usize = 256;
const MAX_SECRET_KEY_BYTES: usize = 256;
const MAX_SECRET_VALUE_BYTES: usize = 65_536;
const MAX_SECRETS_BYTES: usize = 1_048_576;
/// A script is one argument of a process: the kernel's limit less the final NUL.
const MAX_SCRIPT_BYTES: usize = 131_071;

/// Body of a create request.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CreateEnvironment {
    /// Chosen by the caller; unique among existing environments.
    #[serde(deserialize_with = "null_default")]
    #[schema(required = true)]
    pub task_id: String,
    /// Size and placement.
    #[serde(deserialize_with = "object")]
    pub spec: Spec,
    /// Base64 of a JSON manifest; empty = the built-in one.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub manifest_inline: String,
    /// Values by name.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub secrets: BTreeMap<String, String>,
    /// Run with `sh -lc` before the guest agent starts.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub startup_script: String,
    /// Bound of the script in seconds; 0 = server default.
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_zero")]
    pub startup_script_timeout_seconds: i64,
    /// Where the build steps stand in the script; with it each is reported when it ends.
    #[serde(
        deserialize_with = "optional_object",
        skip_serializing_if = "Option::is_none"
    )]
    pub startup_steps: Option<StartupSteps>,
    /// Guest files by absolute path.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub files: BTreeMap<String, FileBody>,
    /// Passed to the guest agent.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub gateway_url: String,
    /// Redacted like a secret. Host agents have no use for it: what a task needs goes into `secrets`.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub gateway_token: String,
    /// Guest ports to publish.
    #[serde(deserialize_with = "objects", skip_serializing_if = "Vec::is_empty")]
    pub expose: Vec<Expose>,
    /// Probe of the workload.
    #[serde(
        deserialize_with = "optional_object",
        skip_serializing_if = "Option::is_none"
    )]
    pub healthcheck: Option<Healthcheck>,
    /// Screen of the guest.
    #[serde(
        deserialize_with = "optional_object",
        skip_serializing_if = "Option::is_none"
    )]
    pub desktop: Option<Desktop>,
    /// How the guest reaches the outside; absent = directly.
    #[serde(
        deserialize_with = "optional_object",
        skip_serializing_if = "Option::is_none"
    )]
    pub egress: Option<Egress>,
    /// Boot from this snapshot.
    #[serde(
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub seed_snapshot_id: String,
}

/// Places in a startup script.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StartupSteps {
    /// Number of the first step in the script, counted from 1: steps that a snapshot holds already
    /// are not in it.
    pub first: u32,
    /// Number of all steps.
    pub total: u32,
    /// Byte offsets of the lines that steps begin with, and of the line behind the last step.
    pub offsets: Vec<u32>,
}

impl StartupSteps {
    /// The offsets must be beginnings of lines of the script, ascending.
    fn check(&self, script: &str) -> Result<(), Violation> {
        let bad = |what: &str| Violation::invalid(format!("startup_steps: {what}"));
        let steps = self.offsets.len().saturating_sub(1);
        let last = u64::from(self.first) + steps as u64;
        if self.first == 0 || steps == 0 || last > u64::from(self.total) + 1 {
            return Err(bad("first, total and offsets do not fit together"));
        }
        let mut before = None;
        for offset in &self.offsets {
            let at = *offset as usize;
            let begins_a_line = at == 0 || script.as_bytes().get(at - 1) == Some(&b'\n');
            if !begins_a_line || at >= script.len() || before.is_some_and(|before| before >= at) {
                return Err(bad("offsets must be beginnings of lines, ascending"));
            }
            before = Some(at);
        }
        Ok(())
    }
}

impl std::fmt::Debug for CreateEnvironment {
    /// Secrets, tokens, scripts and file contents are not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateEnvironment")
            .field("task_id", &self.task_id)
            .field("spec", &self.spec)
            .field("secrets", &self.secrets.keys())
            .field("files", &self.files.keys())
            .finish_non_exhaustive()
    }
}

/// A create request that passed every check that needs nothing but the request.
#[derive(Clone, PartialEq, Eq)]
pub struct CheckedCreate {
    /// As sent.
    pub task_id: String,
    /// Normalised.
    pub spec: Spec,
    /// The manifest's bytes as sent, or the built-in one.
    pub manifest_bytes: Vec<u8>,
    /// The part of the manifest that the control plane reads.
    pub manifest: Manifest,
    /// Values by name; covers every secret that the manifest refers to.
    pub secrets: BTreeMap<String, String>,
    /// Empty = none.
    pub startup_script: String,
    /// Seconds; 0 = server default.
    pub startup_script_timeout_seconds: u64,
    /// Where its build steps stand, when they are to be reported.
    pub startup_steps: Option<StartupSteps>,
    /// Sorted by path.
    pub files: Vec<GuestFile>,
    /// Empty = none.
    pub gateway_url: String,
    /// Empty = none.
    pub gateway_token: String,
    /// Guest ports to publish.
    pub expose: Vec<Expose>,
    /// Probe of the workload.
    pub healthcheck: Option<Healthcheck>,
    /// Screen of the guest.
    pub desktop: Option<Desktop>,
    /// How the guest reaches the outside.
    pub egress: Egress,
    /// Empty = boot an image.
    pub seed_snapshot_id: String,
}

impl std::fmt::Debug for CheckedCreate {
    /// Secrets, tokens, scripts and file contents are not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckedCreate")
            .field("task_id", &self.task_id)
            .field("spec", &self.spec)
            .field("secrets", &self.secrets.keys())
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl CreateEnvironment {
    /// First half: `task_id`, GPU, sizes, labels. Normalises the spec in place.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn check_head(&mut self) -> Result<(), Violation> {
        if self.task_id.trim().is_empty() {
            return Err(Violation::invalid("task_id is required"));
        }
        check_printable("task_id", &self.task_id)?;
        self.spec.check_placement()
    }

    /// Second half: everything from `max_runtime_seconds` on.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn check_tail(self) -> Result<CheckedCreate, Violation> {
        self.spec.check_timeouts()?;
        if let Some(probe) = &self.healthcheck {
            probe.check()?;
        }
        if let Some(desktop) = &self.desktop {
            desktop.check()?;
        }
        workload::check_expose(&self.expose)?;
        let egress = self.egress.unwrap_or_default();
        egress.check()?;
        let script_timeout =
            check_script(&self.startup_script, self.startup_script_timeout_seconds)?;
        if let Some(steps) = &self.startup_steps {
            steps.check(&self.startup_script)?;
        }
        let files = files::check_files(&self.files)?;
        let manifest_bytes = decode_manifest(&self.manifest_inline)?;
        let manifest = check_secrets(&manifest_bytes, &self.secrets)?;
        if !self.seed_snapshot_id.is_empty() && !self.spec.image.is_empty() {
            return Err(Violation::invalid(
                "seed_snapshot_id and spec.image are mutually exclusive",
            ));
        }
        Ok(CheckedCreate {
            task_id: self.task_id,
            spec: self.spec,
            manifest_bytes,
            manifest,
            secrets: self.secrets,
            startup_script: self.startup_script,
            startup_script_timeout_seconds: script_timeout,
            startup_steps: self.startup_steps,
            files,
            gateway_url: self.gateway_url,
            gateway_token: self.gateway_token,
            expose: self.expose,
            healthcheck: self.healthcheck,
            desktop: self.desktop,
            egress,
            seed_snapshot_id: self.seed_snapshot_id,
        })
    }
}

fn check_script(script: &str, timeout_seconds: i64) -> Result<u64, Violation> {
    let timeout = u64::try_from(timeout_seconds)
        .map_err(|_| Violation::invalid("startup_script_timeout_seconds must not be negative"))?;
    if script.len() > MAX_SCRIPT_BYTES {
        return Err(Violation::Invalid(format!(
            "startup_script is {} bytes, at most {MAX_SCRIPT_BYTES} fit one process argument; move parts of it into files",
            script.len()
        )));
    }
    if script.contains('\0') {
        return Err(Violation::invalid("startup_script must not contain NUL"));
    }
    Ok(timeout)
}

fn decode_manifest(inline: &str) -> Result<Vec<u8>, Violation> {
    if inline.is_empty() {
        return Ok(Manifest::BUILT_IN.as_bytes().to_vec());
    }
    decode_base64(inline).ok_or_else(|| Violation::invalid("manifest_inline is not valid base64"))
}

/// Collects every issue of secrets and manifest into one message.
fn check_secrets(
    manifest_bytes: &[u8],
    secrets: &BTreeMap<String, String>,
) -> Result<Manifest, Violation> {
    let mut issues = Vec::new();
    if secrets.len() > MAX_SECRETS {
        issues.push(format!(
            "{} secrets given, at most {MAX_SECRETS} are allowed",
            secrets.len()
        ));
    }
    let mut total = 0usize;
    for (key, value) in secrets {
        total = total.saturating_add(value.len());
        if key.is_empty() {
            issues.push("a secret has an empty name".to_owned());
        }
        if key.len() > MAX_SECRET_KEY_BYTES {
            let start: String = key.chars().take(32).collect();
            issues.push(format!(
                "secret name \"{start}...\" exceeds {MAX_SECRET_KEY_BYTES} bytes"
            ));
        } else if value.len() > MAX_SECRET_VALUE_BYTES {
            issues.push(format!(
                "secret \"{key}\" exceeds {MAX_SECRET_VALUE_BYTES} bytes"
            ));
        }
    }
    if total > MAX_SECRETS_BYTES {
        issues.push(format!(
            "secret values exceed {MAX_SECRETS_BYTES} bytes in total"
        ));
    }
    let manifest = Manifest::parse(manifest_bytes);
    match &manifest {
        Ok(manifest) => {
            for name in manifest.required_secrets() {
                if !secrets.contains_key(name) {
                    issues.push(format!("secret \"{name}\" is required by the manifest"));
                }
            }
        }
        Err(e) => issues.push(format!("manifest is not usable JSON: {e}")),
    }
    match manifest {
        Ok(manifest) if issues.is_empty() => Ok(manifest),
        _ => {
            issues.sort();
            Err(Violation::Invalid(format!(
                "secrets validation failed: {}",
                issues.join("; ")
            )))
        }
    }
}

#[cfg(test)]
#[path = "create_tests.rs"]
mod tests;
