//! What is stored of a create request: as much as it takes to set the guest up again
//! after a boot. No secret, no token, no script, no caller's file is part of it.

use fuse_wire_api::{CheckedCreate, Desktop, Expose, Healthcheck, Manifest};
use serde::{Deserialize, Serialize};

/// See the module. Fields are only ever added: rows of older versions must read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StoredRequest {
    /// The manifest as sent, which is JSON and so is text; empty = the built-in one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) manifest: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) gateway_url: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) expose: Vec<Expose>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) healthcheck: Option<Healthcheck>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) desktop: Option<Desktop>,
}

impl StoredRequest {
    pub(crate) fn of(request: &CheckedCreate) -> Self {
        let manifest = match request.manifest_bytes.as_slice() {
            built_in if built_in == Manifest::BUILT_IN.as_bytes() => String::new(),
            sent => String::from_utf8_lossy(sent).into_owned(),
        };
        Self {
            manifest,
            gateway_url: request.gateway_url.clone(),
            expose: request.expose.clone(),
            healthcheck: request.healthcheck.clone(),
            desktop: request.desktop.clone(),
        }
    }

    pub(crate) fn to_json(&self) -> String {
        // Plain structs always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The bytes of the manifest for the guest.
    pub(crate) fn manifest_text(&self) -> &str {
        if self.manifest.is_empty() {
            Manifest::BUILT_IN
        } else {
            &self.manifest
        }
    }

    /// A row that cannot be read counts as a request without extras.
    pub(crate) fn from_json(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use fuse_wire_api::CreateEnvironment;

    use super::*;

    #[test]
    fn nothing_secret_is_stored() {
        let mut request: CreateEnvironment = fuse_wire_api::decode(
            br#"{"task_id":"a","secrets":{"K":"hunter2hunter2"},"gateway_url":"http://g",
                "gateway_token":"hunter2hunter2","startup_script":"hunter2hunter2",
                "files":{"/x":"aHVudGVyMmh1bnRlcjI="},"expose":[{"port":80,"as":"web"}]}"#,
        )
        .unwrap();
        request.check_head().unwrap();
        let stored = StoredRequest::of(&request.check_tail().unwrap());
        let text = stored.to_json();
        assert!(
            !text.contains("hunter2") && !text.contains("aHVudGVy"),
            "{text}"
        );
        assert_eq!(StoredRequest::from_json(&text), stored);
        assert_eq!(StoredRequest::from_json("{}"), StoredRequest::default());
    }
}
