//! Reads new events once per process and hands them to subscribers.
//!
//! `cursor` is the sequence up to which events have been handed out, `None` while
//! nobody listens (then nothing is read). A subscriber is registered first, then the
//! cursor is made to exist, then the subscriber reads what happened so far: whatever
//! is committed later is beyond the cursor, so nothing falls between the two.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fuse_model::{EnvironmentEvent, EnvironmentId};
use fuse_store::{EventWatch, Store, StoreError};
use futures_util::FutureExt as _;
use prometheus::IntCounter;
use tokio_util::sync::CancellationToken;

use super::topic::{Next, Seat, SharedEvent, Topic};

/// Events read at a time.
const BATCH: u32 = 512;
/// Pause before events are read again after the store failed.
const RETRY: Duration = Duration::from_secs(1);
/// Subscribers that are woken before others have a turn: their tasks take about a
/// millisecond.
const SLICE: usize = 64;

#[derive(Debug, Default)]
struct Topics {
    of: HashMap<EnvironmentId, Arc<Topic>>,
    /// Topics whose subscribers are being woken.
    waking: VecDeque<Arc<Topic>>,
    /// Nothing is handed out any more.
    is_closed: bool,
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    pub(super) store: Store,
    /// Events that slow readers did not get.
    coalesced: IntCounter,
    topics: Arc<Mutex<Topics>>,
    cursor: Arc<tokio::sync::Mutex<Option<i64>>>,
}

/// A registered subscriber; dropping it ends the subscription.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) hub: Hub,
    pub(super) id: EnvironmentId,
    seat: Seat,
}

impl Hub {
    pub(crate) fn new(store: Store, coalesced: IntCounter) -> Self {
        Self {
            store,
            coalesced,
            topics: Arc::default(),
            cursor: Arc::default(),
        }
    }

    /// Delivers until `stop`, or until the store is closed. All streams end with it.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let watch = self.store.event_watch();
        tokio::select! {
            () = self.deliver_all(watch) => {}
            () = stop.cancelled() => {}
        }
        let mut topics = self.lock();
        topics.is_closed = true;
        for topic in topics.of.values() {
            topic.close();
        }
    }

    async fn deliver_all(&self, mut watch: EventWatch) {
        let mut is_waking = false;
        loop {
            let news = if is_waking {
                // Between two slices, so that who waits for the second gets all there is.
                tokio::task::yield_now().await;
                watch.changed().now_or_never()
            } else {
                Some(watch.changed().await)
            };
            match news {
                Some(true) => {
                    while let Err(e) = self.deliver().await {
                        tracing::warn!(error = %crate::error::chain(&e), "cannot read events, trying again");
                        while self.wake_some() {}
                        tokio::time::sleep(RETRY).await;
                    }
                }
                Some(false) => return,
                None => {}
            }
            is_waking = self.wake_some();
        }
    }

    async fn deliver(&self) -> Result<(), StoreError> {
        let mut cursor = self.cursor.lock().await;
        if self.lock().of.is_empty() {
            *cursor = None;
        }
        while let Some(at) = *cursor {
            let events = self.store.event_list_after(at, BATCH).await?;
            let Some(last) = events.last() else { break };
            *cursor = Some(last.id.sequence());
            self.hand_out(events);
        }
        Ok(())
    }

    fn hand_out(&self, events: Vec<EnvironmentEvent>) {
        let mut topics = self.lock();
        for event in events {
            let Some(topic) = topics.of.get(&event.environment_id).cloned() else {
                continue;
            };
            let event = SharedEvent::new(event);
            if event.is_last() {
                topics.of.remove(&event.environment_id);
            }
            if topic.publish(event) {
                topics.waking.push_back(topic);
            }
        }
    }

    /// Wakes a slice of those who have something to read. Answers whether some are left.
    fn wake_some(&self) -> bool {
        let Some(topic) = self.lock().waking.pop_front() else {
            return false;
        };
        let goes_on = topic.wake_some(SLICE);
        let mut topics = self.lock();
        if goes_on {
            topics.waking.push_back(topic);
        }
        !topics.waking.is_empty()
    }

    /// Registers a subscriber: every event committed after this call reaches it.
    pub(super) async fn subscribe(&self, id: &EnvironmentId) -> Result<Subscription, StoreError> {
        let subscription = self.register(id);
        let mut cursor = self.cursor.lock().await;
        if cursor.is_none() {
            *cursor = Some(self.store.event_head().await?);
        }
        Ok(subscription)
    }

    fn register(&self, id: &EnvironmentId) -> Subscription {
        let mut topics = self.lock();
        let is_closed = topics.is_closed;
        let topic = topics
            .of
            .entry(id.clone())
            .or_insert_with(|| Topic::new(self.coalesced.clone()));
        if is_closed {
            topic.close();
        }
        Subscription {
            hub: self.clone(),
            id: id.clone(),
            seat: topic.join(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Topics> {
        // The topics are whole after every operation, so a panicked holder left them usable.
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Next {
        self.seat.next().await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if !self.seat.leave() {
            return;
        }
        let mut topics = self.hub.lock();
        let topic = &self.seat.topic;
        // Somebody may have come meanwhile, or a topic of the same id.
        let is_of_nobody = |known: &Arc<Topic>| Arc::ptr_eq(known, topic) && known.is_empty();
        if topics.of.get(&self.id).is_some_and(is_of_nobody) {
            topics.of.remove(&self.id);
        }
    }
}
