//! The stream of the whole fleet.
//!
//! It has no queue to overflow: each subscriber reads the events table itself, at its
//! own pace, so that no event is merged. Those who watch everything are few.

use std::{collections::VecDeque, time::Duration};

use fuse_model::{EnvironmentEvent, EventId};
use fuse_store::{EventWatch, Store};
use tokio_util::sync::CancellationToken;

use crate::{Control, Error, error::chain};

/// Events read at a time.
const BATCH: u32 = 512;
/// Pause before events are read again after the store failed.
const RETRY: Duration = Duration::from_secs(1);

/// The events of all environments, in the order of commits. It ends at shutdown.
#[derive(Debug)]
pub struct FleetEvents {
    store: Store,
    watch: EventWatch,
    read: VecDeque<EnvironmentEvent>,
    /// Everything up to here was sent.
    seen: i64,
    stop: CancellationToken,
}

impl Control {
    /// Subscribes to everything that is committed from now on, or after the event
    /// `last`, if that is still known.
    ///
    /// # Errors
    /// The store fails.
    pub async fn fleet_events(&self, last: Option<EventId>) -> Result<FleetEvents, Error> {
        let store = self.inner.store.clone();
        let watch = store.event_watch();
        let known = match last {
            Some(last) => store.event_get(last).await?,
            None => None,
        };
        let seen = match known {
            Some(event) => event.id.sequence(),
            None => store.event_head().await?,
        };
        Ok(FleetEvents {
            store,
            watch,
            read: VecDeque::new(),
            seen,
            stop: self.stop_token().clone(),
        })
    }
}

impl FleetEvents {
    /// The next event; `None` when the stream is over.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<EnvironmentEvent> {
        loop {
            if self.stop.is_cancelled() {
                return None;
            }
            if let Some(event) = self.read.pop_front() {
                self.seen = event.id.sequence();
                return Some(event);
            }
            match self.store.event_list_after(self.seen, BATCH).await {
                Ok(events) if events.is_empty() => {
                    let is_open = tokio::select! {
                        is_open = self.watch.changed() => is_open,
                        () = self.stop.cancelled() => false,
                    };
                    if !is_open {
                        return None;
                    }
                }
                Ok(events) => self.read = events.into(),
                Err(e) => {
                    tracing::warn!(error = %chain(&e), "cannot read events, trying again");
                    tokio::select! {
                        () = tokio::time::sleep(RETRY) => {}
                        () = self.stop.cancelled() => {}
                    }
                }
            }
        }
    }
}
