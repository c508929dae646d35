//! One subscriber's stream: a snapshot or a replay first, then what happens.

use std::{collections::VecDeque, sync::Arc};

use fuse_model::{Environment, EnvironmentEvent, EnvironmentId, EventId};
use fuse_store::StoreError;

use super::{
    hub::Subscription,
    topic::{Next, SharedEvent},
};
use crate::{
    Control, Error,
    error::{Missing, chain},
};

/// Events of one environment that are kept for replay.
const REPLAY: u32 = 256;

/// The events of one environment. It ends after a terminal event and at shutdown.
#[derive(Debug)]
pub struct EventStream {
    subscription: Subscription,
    first: VecDeque<EnvironmentEvent>,
    /// Everything up to here was sent, or is part of the snapshot.
    seen: i64,
    over: bool,
}

impl Control {
    /// Subscribes to an environment. The first event is a snapshot of the current
    /// state with an id of its own, unless `last` is an event of this environment that
    /// is still known: then everything newer comes first.
    ///
    /// # Errors
    /// The environment does not exist, or the store fails.
    pub async fn environment_events(
        &self,
        id: &EnvironmentId,
        last: Option<EventId>,
    ) -> Result<EventStream, Error> {
        let subscription = self.inner.hub.subscribe(id).await?;
        let known = match last {
            Some(last) => self.known_event(id, last).await?,
            None => None,
        };
        let (first, seen) = match known {
            Some(event) => {
                let after = event.id.sequence();
                (
                    self.inner.store.event_list_of(id, after, REPLAY).await?,
                    after,
                )
            }
            None => {
                let snapshot = self.snapshot(id).await?;
                let sequence = snapshot.id.sequence();
                (vec![snapshot], sequence)
            }
        };
        Ok(EventStream {
            subscription,
            first: first.into(),
            seen,
            over: false,
        })
    }

    async fn known_event(
        &self,
        id: &EnvironmentId,
        last: EventId,
    ) -> Result<Option<EnvironmentEvent>, StoreError> {
        let event = self.inner.store.event_get(last).await?;
        Ok(event.filter(|event| event.environment_id == *id))
    }

    /// The current state as an event. Its sequence is that of the newest transition
    /// that it includes; its id is nobody else's.
    async fn snapshot(&self, id: &EnvironmentId) -> Result<EnvironmentEvent, Error> {
        let store = &self.inner.store;
        let record = store.environment_get(id).await?;
        let record = record.ok_or_else(|| Missing::Environment(id.clone()))?;
        let mut newest: Option<EnvironmentEvent> = None;
        loop {
            let after = newest.as_ref().map_or(0, |event| event.id.sequence());
            match store.event_list_of(id, after, REPLAY).await?.pop() {
                Some(event) => newest = Some(event),
                None => break,
            }
        }
        Ok(match newest {
            // It moved on since the record was read.
            Some(event) if event.state != record.state => EnvironmentEvent {
                id: EventId::at(event.id.sequence()),
                ..event
            },
            newest => from_record(record, newest.map_or(0, |event| event.id.sequence())),
        })
    }
}

fn from_record(record: Environment, sequence: i64) -> EnvironmentEvent {
    EnvironmentEvent {
        id: EventId::at(sequence),
        environment_id: record.id,
        state: record.state,
        url: record.url,
        error: record.error,
        report: None,
        at: record.updated_at,
    }
}

impl EventStream {
    /// The next event; `None` when the stream is over.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Arc<SharedEvent>> {
        if self.over {
            return None;
        }
        let event = match self.first.pop_front() {
            Some(event) => SharedEvent::new(event),
            None => self.live().await?,
        };
        self.seen = self.seen.max(event.id.sequence());
        self.over = event.is_last();
        Some(event)
    }

    async fn live(&mut self) -> Option<Arc<SharedEvent>> {
        loop {
            match self.subscription.next().await {
                Next::Event(event) if event.id.sequence() > self.seen => return Some(event),
                // Part of the snapshot, or replayed.
                Next::Event(_) => {}
                Next::Closed => return None,
                // Apart: it is rare, and what it needs would be part of every stream.
                Next::Ended => match Box::pin(self.follow()).await {
                    Ok(Some(event)) => return Some(SharedEvent::new(event)),
                    Ok(None) => {}
                    Err(e) => {
                        tracing::warn!(
                            error = %chain(&e),
                            "cannot read events, ending a stream"
                        );
                        return None;
                    }
                },
            }
        }
    }

    /// Goes over to the environment that is watched, from one that had the same id before
    /// it and whose end was not handed out yet when the stream began.
    async fn follow(&mut self) -> Result<Option<EnvironmentEvent>, StoreError> {
        let Subscription { hub, id, .. } = &self.subscription;
        let subscription = hub.subscribe(id).await?;
        self.first = hub.store.event_list_of(id, self.seen, REPLAY).await?.into();
        self.subscription = subscription;
        Ok(self.first.pop_front())
    }
}
