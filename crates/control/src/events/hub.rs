//! Reads new events once per process and hands them to subscribers.
//!
//! `cursor` is the sequence up to which events have been handed out, `None` while
//! nobody listens (then nothing is read). A subscriber is registered first, then the
//! cursor is made to exist, then the subscriber reads what happened so far: whatever
//! is committed later is beyond the cursor, so nothing falls between the two.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fuse_model::{EnvironmentEvent, EnvironmentId};
use fuse_store::{Store, StoreError};
use prometheus::IntCounter;
use tokio_util::sync::CancellationToken;

use super::mailbox::Mailbox;

/// Events read at a time.
const BATCH: u32 = 512;
/// Pause before events are read again after the store failed.
const RETRY: Duration = Duration::from_secs(1);

type Subscribers = HashMap<EnvironmentId, Vec<Arc<Mailbox>>>;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    store: Store,
    /// Events that a full mailbox merged.
    coalesced: IntCounter,
    subscribers: Arc<Mutex<Subscribers>>,
    cursor: Arc<tokio::sync::Mutex<Option<i64>>>,
}

/// A registered mailbox; dropping it ends the subscription.
#[derive(Debug)]
pub(super) struct Subscription {
    hub: Hub,
    id: EnvironmentId,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Hub {
    pub(crate) fn new(store: Store, coalesced: IntCounter) -> Self {
        Self {
            store,
            coalesced,
            subscribers: Arc::default(),
            cursor: Arc::default(),
        }
    }

    /// Delivers until `stop`, or until the store is closed.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut watch = self.store.event_watch();
        loop {
            let alive = tokio::select! {
                alive = watch.changed() => alive,
                () = stop.cancelled() => false,
            };
            if !alive {
                return;
            }
            while let Err(e) = self.deliver().await {
                tracing::warn!(error = %crate::error::chain(&e), "cannot read events, trying again");
                tokio::select! {
                    () = tokio::time::sleep(RETRY) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    async fn deliver(&self) -> Result<(), StoreError> {
        let mut cursor = self.cursor.lock().await;
        if self.lock().is_empty() {
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
        let subscribers = self.lock();
        for event in events {
            for mailbox in subscribers.get(&event.environment_id).into_iter().flatten() {
                if mailbox.push(event.clone()) {
                    self.coalesced.inc();
                }
            }
        }
    }

    /// Registers a subscriber: every event committed after this call reaches it.
    pub(super) async fn subscribe(&self, id: &EnvironmentId) -> Result<Subscription, StoreError> {
        let mailbox = Arc::new(Mailbox::default());
        self.lock()
            .entry(id.clone())
            .or_default()
            .push(mailbox.clone());
        let subscription = Subscription {
            hub: self.clone(),
            id: id.clone(),
            mailbox,
        };
        let mut cursor = self.cursor.lock().await;
        if cursor.is_none() {
            *cursor = Some(self.store.event_head().await?);
        }
        Ok(subscription)
    }

    fn lock(&self) -> MutexGuard<'_, Subscribers> {
        // The map is whole after every operation, so a panicked holder left it usable.
        self.subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscribers = self.hub.lock();
        if let Some(mailboxes) = subscribers.get_mut(&self.id) {
            mailboxes.retain(|other| !Arc::ptr_eq(other, &self.mailbox));
            if mailboxes.is_empty() {
                subscribers.remove(&self.id);
            }
        }
    }
}
