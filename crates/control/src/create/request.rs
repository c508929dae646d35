//! What is stored of a create request: as much as recovery needs to finish or redo the
//! steps after the boot. No secret, no token, no script, no file is part of it.

use fuse_wire_api::{CheckedCreate, Desktop, Expose, Healthcheck};
use serde::{Deserialize, Serialize};

/// See the module. Fields are only ever added: rows of older versions must read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StoredRequest {
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
        Self {
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
