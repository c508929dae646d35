//! The operations that an orchestrator is to die in.

use reqwest::Method;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Create,
    /// A create whose script fails, so that it is undone.
    Undone,
    /// A create from a snapshot whose disk another host has to fetch first.
    Pull,
    Fork,
    Drain,
    Rotate,
    Snapshot,
    /// One that is answered before it is taken.
    Background,
    Restore,
    /// The end of a snapshot.
    Delete,
    /// To another host.
    Migrate,
    Destroy,
}

impl Operation {
    pub(super) const ALL: [Self; 12] = [
        Self::Create,
        Self::Undone,
        Self::Pull,
        Self::Fork,
        Self::Drain,
        Self::Rotate,
        Self::Snapshot,
        Self::Background,
        Self::Restore,
        Self::Delete,
        Self::Migrate,
        Self::Destroy,
    ];

    /// Prefixes of what its effects are counted on.
    pub(super) fn counted(self) -> &'static str {
        match self {
            Self::Fork => "fuse-fork-",
            // The copy is an effect like any other.
            Self::Pull => "fuse-subject,art-",
            Self::Delete => "snap-",
            // Who is moved, who takes the place, and the copy that it starts from.
            Self::Migrate => "fuse-subject,fuse-mig-,art-",
            Self::Background | Self::Restore => "fuse-subject,snap-",
            _ => "fuse-subject",
        }
    }

    /// Whether the subject is there before.
    pub(super) fn has_subject(self) -> bool {
        !matches!(self, Self::Create | Self::Undone | Self::Pull)
    }

    /// Whose snapshot it needs, if any.
    pub(super) fn snapshot_of(self) -> Option<&'static str> {
        match self {
            Self::Pull => Some("bystander"),
            Self::Restore | Self::Delete => Some("subject"),
            _ => None,
        }
    }

    /// The request for it; `snapshot` is the one that it needs.
    pub(super) fn request(self, snapshot: &str) -> (Method, String, Option<Value>) {
        let create = |script: &str, seed: Value| {
            let body = json!({
                "task_id": "subject", "startup_script": script, "expose": [{"port": 80}],
                "spec": {"cpus": 2, "host_id": seed["host"]}, "seed_snapshot_id": seed["id"],
            });
            (Method::POST, "/v1/environments".to_owned(), Some(body))
        };
        let nothing = || json!({"host": "", "id": ""});
        let act = |action: &str, body: Option<Value>| {
            let path = format!("/v1/environments/fuse-subject{action}");
            (Method::POST, path, body)
        };
        let of_snapshot = |method, action: &str| {
            let path = format!("/v1/snapshots/{snapshot}{action}");
            (method, path, None)
        };
        match self {
            Self::Create => create("true", nothing()),
            Self::Undone => create("fail", nothing()),
            // The bystander, and so its snapshot, is on the other one.
            Self::Pull => create("true", json!({"host": "two", "id": snapshot})),
            Self::Fork => act("?action=fork", Some(json!({}))),
            Self::Migrate => act("?action=migrate", Some(json!({}))),
            Self::Drain => act("?action=drain", None),
            Self::Rotate => act("?action=rotate-token", None),
            Self::Snapshot | Self::Background => act("/snapshots", Some(json!({}))),
            Self::Restore => of_snapshot(Method::POST, "?action=restore"),
            Self::Delete => of_snapshot(Method::DELETE, ""),
            Self::Destroy => (
                Method::DELETE,
                "/v1/environments/fuse-subject".to_owned(),
                None,
            ),
        }
    }
}
