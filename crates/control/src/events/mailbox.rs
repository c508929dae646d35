//! The queue of one subscriber.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use fuse_model::EnvironmentEvent;
use tokio::sync::Notify;

/// Most events that wait for a subscriber.
const CAPACITY: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Mailbox {
    queue: Mutex<VecDeque<EnvironmentEvent>>,
    filled: Notify,
}

impl Mailbox {
    /// Adds an event. When the queue is full it takes the place of the newest one: the
    /// latest state is what counts. But a terminal event stays, because the stream ends
    /// with it: what follows belongs to another environment of the same id. A step is no
    /// state and then gets lost itself. Answers whether one was lost.
    pub(super) fn push(&self, event: EnvironmentEvent) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = queue.len() >= CAPACITY;
        if is_full {
            let is_over = queue.back().is_some_and(|last| last.state.is_terminal());
            if is_over || event.step.is_some() {
                return true;
            }
            queue.pop_back();
        }
        queue.push_back(event);
        drop(queue);
        self.filled.notify_one();
        is_full
    }

    /// Takes the oldest event, waiting for one.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn pop(&self) -> EnvironmentEvent {
        loop {
            let next = self
                .queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front();
            if let Some(event) = next {
                return event;
            }
            self.filled.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use fuse_model::{EnvironmentId, EventId, State};

    use super::*;

    fn event(sequence: i64, state: State) -> EnvironmentEvent {
        EnvironmentEvent {
            id: EventId::at(sequence),
            environment_id: EnvironmentId::new("a"),
            state,
            url: String::new(),
            error: String::new(),
            step: None,
            at: fuse_model::now(),
        }
    }

    #[tokio::test]
    async fn a_full_queue_merges_and_keeps_the_last() {
        let mailbox = Mailbox::default();
        for sequence in 0..100 {
            mailbox.push(event(sequence, State::Running));
        }
        mailbox.push(event(100, State::Destroyed));
        // The id is used again, and that says nothing to those who watch the old one.
        mailbox.push(event(101, State::Provisioning));
        for sequence in 0..31 {
            assert_eq!(mailbox.pop().await.id.sequence(), sequence);
        }
        assert_eq!(mailbox.pop().await.state, State::Destroyed);
    }
}
