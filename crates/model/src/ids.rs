//! Identifiers. Each kind is a type of its own, so that they cannot be mixed up.

use std::fmt;
use std::str::FromStr;

use rand::Rng as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Longest VM id that is used as is; agents and guest host names cope with it.
const MAX_ENVIRONMENT_ID: usize = 100;
/// Hex digits of the task id's digest that make a slugged id unique again.
const SLUG_DIGEST_CHARS: usize = 8;

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Takes the text as the id; rules on its form are checked where it enters.
            pub fn new(id: impl Into<String>) -> Self {
                Self(id.into())
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The id's text, by value.
            pub fn into_string(self) -> String {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

string_id!(
    /// An environment, which is also the name of its VM on the host (`fuse-…`).
    EnvironmentId
);
string_id!(
    /// A snapshot, named by the host that took it (`snap-…`).
    SnapshotId
);
string_id!(
    /// A task: chosen by the caller, unique among tracked environments.
    TaskId
);
string_id!(
    /// A host: free-form, chosen by the operator.
    HostId
);
string_id!(
    /// The fleet: random, made once per store, the owner tag of every VM.
    FleetId
);
string_id!(
    /// One running orchestrator process.
    ReplicaId
);
string_id!(
    /// An API key (`ak_` + 16 hex), which is also the tenant of its requests.
    ApiKeyId
);

impl EnvironmentId {
    /// The VM id of a task: `prefix` + task id when that is safe as a host
    /// name, else a slug of it + 8 hex digits of its digest. The result is at
    /// most 100 characters (given a prefix well below that).
    pub fn for_task(prefix: &str, task: &TaskId) -> Self {
        let raw = task.as_str();
        let plain = !raw.is_empty()
            && raw.bytes().all(is_plain)
            && !raw.starts_with('-')
            && !raw.ends_with('-')
            && prefix.len() + raw.len() <= MAX_ENVIRONMENT_ID;
        if plain {
            return Self(format!("{prefix}{raw}"));
        }
        let digest = hex::encode(Sha256::digest(raw.as_bytes()));
        let digest = &digest[..SLUG_DIGEST_CHARS];
        let room = MAX_ENVIRONMENT_ID.saturating_sub(prefix.len() + 1 + SLUG_DIGEST_CHARS);
        let slug = slug(raw, room);
        if slug.is_empty() {
            Self(format!("{prefix}{digest}"))
        } else {
            Self(format!("{prefix}{slug}-{digest}"))
        }
    }
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

/// Lowercases, turns every run of other characters into one dash, trims dashes
/// from the ends and cuts to `max` characters.
fn slug(text: &str, max: usize) -> String {
    let mut out = String::new();
    for ch in text.chars().flat_map(char::to_lowercase) {
        if ch.is_ascii_lowercase() || ch.is_ascii_digit() {
            out.push(ch);
        } else if !out.ends_with('-') {
            out.push('-');
        }
    }
    let trimmed = out.trim_matches('-');
    let cut = &trimmed[..trimmed.len().min(max)];
    cut.trim_end_matches('-').to_owned()
}

impl FleetId {
    /// A new random id of 32 hex digits.
    pub fn random() -> Self {
        Self(random_hex::<16>())
    }
}

impl ReplicaId {
    /// A new random id of 16 hex digits.
    pub fn random() -> Self {
        Self(random_hex::<8>())
    }
}

fn random_hex<const BYTES: usize>() -> String {
    let mut bytes = [0u8; BYTES];
    rand::rng().fill_bytes(&mut bytes);
    hex::encode(bytes)
}

/// The id of a stream event: 32 lowercase hex digits.
///
/// The first 16 are the event's place in the fleet-wide order, so that a
/// client's `Last-Event-ID` is a cursor without an index of its own; the last
/// 16 are random, so that an id of another store is not taken for one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    sequence: i64,
    nonce: u64,
}

impl EventId {
    /// A fresh id for the event at `sequence`.
    pub fn at(sequence: i64) -> Self {
        Self {
            sequence,
            nonce: rand::rng().next_u64(),
        }
    }

    /// The place in the fleet-wide order.
    pub const fn sequence(self) -> i64 {
        self.sequence
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.sequence, self.nonce)
    }
}

/// Not 32 lowercase hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an event id is 32 lowercase hex digits")]
pub struct ParseEventIdError;

impl FromStr for EventId {
    type Err = ParseEventIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 32 || !text.bytes().all(lower_hex) {
            return Err(ParseEventIdError);
        }
        let (sequence, nonce) = text.split_at(16);
        Ok(Self {
            sequence: i64::from_str_radix(sequence, 16).map_err(|_| ParseEventIdError)?,
            nonce: u64::from_str_radix(nonce, 16).map_err(|_| ParseEventIdError)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(task: &str) -> String {
        EnvironmentId::for_task("fuse-", &TaskId::new(task)).into_string()
    }

    #[test]
    fn plain_task_ids_are_kept() {
        assert_eq!(id("my-task-1"), "fuse-my-task-1");
        assert_eq!(id(&"a".repeat(95)), format!("fuse-{}", "a".repeat(95)));
    }

    #[test]
    fn other_task_ids_are_slugged() {
        assert_eq!(
            id("My Task/1"),
            format!("fuse-my-task-1-{}", sha8("My Task/1"))
        );
        assert_eq!(id("-edge"), format!("fuse-edge-{}", sha8("-edge")));
        assert_eq!(id("日本"), format!("fuse-{}", sha8("日本")));
        assert_ne!(id("a_b"), id("a.b"));
    }

    fn sha8(text: &str) -> String {
        hex::encode(Sha256::digest(text.as_bytes()))[..8].to_owned()
    }

    #[test]
    fn event_ids_are_32_hex_and_parse_back() {
        let id = EventId::at(258);
        let text = id.to_string();
        assert_eq!(text.len(), 32);
        assert!(text.starts_with("0000000000000102"));
        assert_eq!(text.parse::<EventId>(), Ok(id));
        assert_eq!("xyz".parse::<EventId>(), Err(ParseEventIdError));
        assert_eq!(
            text.to_uppercase().parse::<EventId>().is_err(),
            text != text.to_uppercase()
        );
        assert!("f".repeat(32).parse::<EventId>().is_err());
    }

    proptest! {
        #[test]
        fn environment_ids_are_host_safe(task in ".{1,300}") {
            let id = id(&task);
            prop_assert!(id.len() <= MAX_ENVIRONMENT_ID);
            prop_assert!(id.bytes().all(is_plain));
            prop_assert!(!id.ends_with('-'));
        }
    }
}
