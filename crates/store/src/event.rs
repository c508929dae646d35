//! Events.
use fuse_model::{EnvironmentEvent, EnvironmentId, EventId};
use jiff::Timestamp;

use crate::{Store, StoreError};

/// Fires when new events have been committed, by any replica.
#[derive(Debug, Clone)]
pub struct EventWatch {}

impl EventWatch {
    /// Waits until there may be events that were not there at the last call (or
    /// when the watch was made). May fire without any. `false` once the store is
    /// closed.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn changed(&mut self) -> bool {
        false
    }
}

impl Store {
    /// A watch on new events.
    pub fn event_watch(&self) -> EventWatch {
        EventWatch {}
    }

    /// The sequence of the newest event; 0 before the first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_head(&self) -> Result<i64, StoreError> {
        Err(StoreError::Closed)
    }

    /// Events after `sequence`, oldest first, at most `limit`: the whole fleet's.
    /// An event seen here is never followed by one with a lower sequence.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_list_after(
        &self,
        _sequence: i64,
        _limit: u32,
    ) -> Result<Vec<EnvironmentEvent>, StoreError> {
        Err(StoreError::Closed)
    }

    /// One environment's events after `sequence`, oldest first, at most `limit`.
    /// They stay readable for a while after the environment is gone.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_list_of(
        &self,
        _id: &EnvironmentId,
        _sequence: i64,
        _limit: u32,
    ) -> Result<Vec<EnvironmentEvent>, StoreError> {
        Err(StoreError::Closed)
    }

    /// The event of this id, if it is known: resolves a `Last-Event-ID`.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_get(&self, _id: EventId) -> Result<Option<EnvironmentEvent>, StoreError> {
        Err(StoreError::Closed)
    }

    /// Forgets events of environments that ended before `ended_before`, and all
    /// but the newest `keep` of every other one. Answers how many.
    ///
    /// # Errors
    /// The database fails.
    pub async fn event_prune(
        &self,
        _ended_before: Timestamp,
        _keep: u32,
    ) -> Result<u64, StoreError> {
        Err(StoreError::Closed)
    }
}
