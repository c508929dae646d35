//! What a host asks of a guest around a snapshot, and after bringing it back.

use serde::{Deserialize, Serialize};

use crate::Blob;

/// Paths of these calls.
pub mod path {
    /// `POST` [`FreezeRequest`](super::FreezeRequest) → [`FreezeResponse`](super::FreezeResponse).
    pub const FREEZE: &str = "/v1/freeze";
    /// `POST` → [`ThawResponse`](super::ThawResponse).
    pub const THAW: &str = "/v1/thaw";
    /// `POST` [`SeedRequest`](super::SeedRequest) → 204.
    pub const SEED: &str = "/v1/seed";
    /// `POST` [`ResumedRequest`](super::ResumedRequest) →
    /// [`ClockResponse`](crate::control::ClockResponse).
    pub const RESUMED: &str = "/v1/resumed";
}

/// Bytes of a seed.
pub const SEED_BYTES: usize = 64;

/// Writes everything back and lets nobody write to the disk for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeRequest {
    /// After this time the guest thaws whatever happens. 0 only writes everything back.
    pub hold_ms: u64,
}

/// Answer to a freeze: the disk is as the guest's programs see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeResponse {
    /// Whether nobody writes now.
    pub frozen: bool,
}

/// Answer to a thaw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThawResponse {
    /// Whether the disk stayed frozen until now; otherwise it was written to meanwhile.
    pub held: bool,
}

/// What a guest that has just booted cannot have of itself: randomness for its kernel, so that no two
/// guests that start alike go on alike, and the time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeedRequest {
    /// [`SEED_BYTES`] random bytes.
    pub seed_b64: Blob,
    /// Microseconds since the Unix epoch, UTC. Older agents leave their clock as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_micros: Option<i64>,
}

/// Tells a guest that it goes on from a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumedRequest {
    /// Microseconds since the Unix epoch, UTC.
    pub unix_micros: i64,
    /// [`SEED_BYTES`] random bytes.
    pub seed_b64: Blob,
}
