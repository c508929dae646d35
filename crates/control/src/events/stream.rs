//! One subscriber's stream: a snapshot or a replay first, then what happens.

use std::{collections::VecDeque, sync::Arc};

use fuse_model::{Environment, EnvironmentEvent, EnvironmentId, EventId};
use fuse_store::{Store, StoreError};

use super::{
    hub::Subscription,
    topic::{Next, SharedEvent},
};
use crate::{
    Control, Error,
    error::{Missing, chain},
};

/// Events of one environment that are read at a time.
const BATCH: u32 = 256;

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
                (newer(&self.inner.store, id, after).await?, after)
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
        Ok(match newer(store, id, 0).await?.pop() {
            // It moved on since the record was read.
            Some(event) if event.state != record.state => EnvironmentEvent {
                id: EventId::at(event.id.sequence()),
                ..event
            },
            newest => from_record(record, newest.map_or(0, |event| event.id.sequence())),
        })
    }
}

/// All events of the environment after `sequence`. Not some of them: its end may be the last,
/// and who subscribed after that would wait for it forever.
async fn newer(
    store: &Store,
    id: &EnvironmentId,
    mut sequence: i64,
) -> Result<Vec<EnvironmentEvent>, StoreError> {
    let mut all = Vec::new();
    loop {
        let events = store.event_list_of(id, sequence, BATCH).await?;
        let is_all = events.len() < BATCH as usize;
        all.extend(events);
        match all.last() {
            Some(last) if !is_all => sequence = last.id.sequence(),
            _ => return Ok(all),
        }
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
        self.first = newer(&hub.store, id, self.seen).await?.into();
        self.subscription = subscription;
        Ok(self.first.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use fuse_model::State;
    use fuse_store::Vault;
    use fuse_wire_api::CreateEnvironment;
    use serde_json::json;

    use super::*;
    use crate::Settings;

    async fn create(control: &Control, task: &str) -> EnvironmentId {
        let request: CreateEnvironment = serde_json::from_value(json!({"task_id": task})).unwrap();
        let request = request.check_tail().unwrap();
        let creation = control.environment_create(request, String::new()).await;
        creation.unwrap().finished().await.unwrap().id
    }

    async fn states(mut stream: EventStream) -> Vec<State> {
        let mut states = Vec::new();
        while let Some(event) = stream.next().await {
            states.push(event.state);
        }
        states
    }

    /// An id is used again before the end of the environment that had it was handed out.
    #[tokio::test]
    async fn a_stream_is_of_the_environment_that_it_began_with() {
        let ended = [State::Running, State::Destroying, State::Destroyed];
        let store = Store::open(None, Vault::none()).await.unwrap();
        let control = Control::new(store, Settings::default()).unwrap();
        let subscribe = async |id: &EnvironmentId| control.environment_events(id, None).await;
        let id = create(&control, "a").await;
        let first = subscribe(&id).await.unwrap();
        control.environment_destroy(&id).await.unwrap();
        // Nothing is handed out yet, so all of these are on the topic of the first one.
        assert_eq!(create(&control, "a").await, id);
        let second = subscribe(&id).await.unwrap();
        control.environment_destroy(&id).await.unwrap();
        assert_eq!(create(&control, "a").await, id);
        let mut third = subscribe(&id).await.unwrap();
        assert_eq!(third.next().await.unwrap().state, State::Running);

        let hub = control.clone();
        control.spawn(async move { hub.inner.hub.run(hub.stop_token().clone()).await });
        // It begins with the next news.
        create(&control, "b").await;
        assert_eq!(states(first).await, ended);
        // What is over is read from the table,
        assert_eq!(states(second).await, ended);
        // and what goes on is heard of when it happens.
        let (rest, destroyed) = tokio::join!(states(third), control.environment_destroy(&id));
        destroyed.unwrap();
        assert_eq!(rest, ended[1..]);

        control.begin_shutdown();
        control.finished().await;
        control.store().close().await;
    }
}
