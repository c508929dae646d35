//! Artifacts: the disks of snapshots, and base images, on their way from one host to another.
//!
//! `GET /v1/artifacts/{digest}` serves the bytes whose SHA-256 is `digest` to whoever brings a
//! [`Grant`](crate::Grant) for it; `POST /v1/artifacts/{digest}/pull` makes a host fetch them from
//! another one. The control plane asks for both and never carries the bytes.
//!
//! A snapshot's disk travels in its sparse form, which is what its digest is taken of; a base image
//! travels as it is. A disk is of use on its base image only, so whoever serves one names that
//! image, and hands out a grant for it, in headers of the answer.

use serde::{Deserialize, Serialize};

use crate::grant::Grant;

/// Carries the grant.
pub const GRANT_HEADER: &str = "x-fuse-artifact-grant";
/// The digest of what is served.
pub const DIGEST_HEADER: &str = "x-fuse-artifact-digest";
/// The digest of the base image that a served disk belongs to.
pub const BASE_HEADER: &str = "x-fuse-artifact-base";
/// A grant for that image.
pub const BASE_GRANT_HEADER: &str = "x-fuse-artifact-base-grant";
/// Longest id of a snapshot.
const MAX_ID: usize = 128;

/// Whether `text` is 64 lower-case hex digits.
#[must_use]
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(is_hex)
}

pub(crate) fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Whether `text` may be the id of a snapshot: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
#[must_use]
pub fn is_snapshot_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.len() <= MAX_ID
        && text.bytes().all(plain)
}

/// `POST /v1/artifacts/{digest}/pull`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PullRequest {
    /// The agent to fetch from; only scheme, host and port count. Required.
    pub peer_url: String,
    /// What opens it there. Required.
    pub grant: Grant,
    /// The id under which it is kept; absent is one made from the digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// The base image that the disk is expected to belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_digest: Option<String>,
    /// Answer at once and go on; absent waits for the end.
    #[serde(rename = "async", skip_serializing_if = "Option::is_none")]
    pub is_async: Option<bool>,
}

/// The id of an artifact that was pulled without one.
#[must_use]
pub fn default_id(digest: &str) -> String {
    format!("art-{}", digest.get(..16).unwrap_or(digest))
}

/// What a host keeps after a pull.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its id on the host.
    pub snapshot_id: String,
    /// Where it came from, as a sentence.
    #[serde(default)]
    pub comment: String,
    /// When it was there, RFC 3339 in UTC.
    #[serde(default)]
    pub created_at: String,
    /// Empty: it is no VM's of this host.
    #[serde(default)]
    pub origin_vm_id: String,
    /// SHA-256, verified.
    pub digest: String,
    /// Bytes that it takes on the host.
    #[serde(default)]
    pub bytes: u64,
    /// The agent that it came from.
    #[serde(default)]
    pub source_peer: String,
    /// The base image that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_digest: Option<String>,
}

/// How far a pull is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PullState {
    /// Under way.
    #[default]
    Running,
    /// The artifact is there.
    Done,
    /// It is not, and nothing of it is left.
    Failed,
}

/// `GET /v1/artifacts/pulls/{pull_id}`, and the 202 of an asynchronous pull.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    /// Its id.
    #[serde(default)]
    pub pull_id: String,
    /// How far it is.
    pub state: PullState,
    /// Bytes that have arrived, of the base image too.
    #[serde(default)]
    pub bytes_done: u64,
    /// Bytes that there are to fetch, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_total: Option<u64>,
    /// What is there now, once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Artifact>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a pull is answered with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PullAnswer {
    /// The artifact is there: it was before, or the agent knows no asynchronous form.
    Done(Artifact),
    /// It is being fetched.
    Begun(Pull),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_and_ids_are_names_and_nothing_else() {
        assert!(is_digest(&"0a".repeat(32)));
        for bad in [
            "",
            "0A",
            &"0A".repeat(32),
            &"0a".repeat(33),
            &"0g".repeat(32),
        ] {
            assert!(!is_digest(bad), "{bad}");
        }
        for good in ["a", "art-0123", "A.b_c-9", &"a".repeat(128)] {
            assert!(is_snapshot_id(good), "{good}");
        }
        for bad in ["", ".new-x", "../x", "-a", "a/b", "ä", &"a".repeat(129)] {
            assert!(!is_snapshot_id(bad), "{bad}");
        }
    }

    #[test]
    fn both_answers_of_a_pull_are_told_apart() {
        let text = r#"{"snapshot_id":"s","digest":"d","bytes":3,"source_peer":"p"}"#;
        let answer: PullAnswer = serde_json::from_str(text).unwrap();
        assert!(matches!(answer, PullAnswer::Done(record) if record.bytes == 3));
        let text = r#"{"pull_id":"p","state":"running"}"#;
        let answer: PullAnswer = serde_json::from_str(text).unwrap();
        assert!(matches!(answer, PullAnswer::Begun(pull) if pull.pull_id == "p"));
    }

    #[test]
    fn a_request_of_the_plain_contract_is_enough() {
        let text = r#"{"peer_url":"http://h:1","grant":"g","async":true}"#;
        let request: PullRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.is_async, Some(true));
        assert!(
            !format!("{request:?}").contains("\"g\""),
            "a grant in a log opens the artifact"
        );
    }
}
