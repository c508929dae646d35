//! What this process is at work on: creates, so that a destroy can stop one first, and whatever its
//! records alone would take for interrupted.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fuse_model::EnvironmentId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The registry; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inflight {
    running: Arc<Mutex<HashMap<EnvironmentId, Entry>>>,
}

#[derive(Debug, Clone)]
struct Entry {
    cancel: CancellationToken,
    done: watch::Receiver<()>,
}

/// A registered create. Dropping it tells those who wait that it is over.
#[derive(Debug)]
pub(crate) struct Registration {
    registry: Inflight,
    id: EnvironmentId,
    cancel: CancellationToken,
    _done: watch::Sender<()>,
}

impl Inflight {
    /// Registers a create of `id`.
    pub(crate) fn begin(&self, id: &EnvironmentId) -> Registration {
        let cancel = CancellationToken::new();
        let (sender, done) = watch::channel(());
        self.lock().insert(
            id.clone(),
            Entry {
                cancel: cancel.clone(),
                done,
            },
        );
        Registration {
            registry: self.clone(),
            id: id.clone(),
            cancel,
            _done: sender,
        }
    }

    /// Whether this process runs a create of `id`.
    pub(crate) fn contains(&self, id: &EnvironmentId) -> bool {
        self.lock().contains_key(id)
    }

    /// Stops the create of `id`, if this process runs one, and waits until it is over.
    pub(crate) async fn stop(&self, id: &EnvironmentId) {
        let Some(mut entry) = self.lock().get(id).cloned() else {
            return;
        };
        entry.cancel.cancel();
        // Nothing is ever sent: this ends when the sender is dropped.
        while entry.done.changed().await.is_ok() {}
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EnvironmentId, Entry>> {
        // The map is whole after every operation, so a panicked holder left it usable.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Completes when somebody wants the create to stop.
    pub(crate) async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.lock().remove(&self.id);
    }
}

/// Ids that tasks of this process are at work on: environments whose operation they hold, copies of
/// snapshots that they fetch. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    /// With how many: one that was taken over may not have noticed yet.
    tasks: Arc<Mutex<HashMap<String, usize>>>,
}

/// Work on an id; dropping it ends that.
#[derive(Debug)]
pub(crate) struct Hold {
    held: Held,
    id: String,
}

impl Held {
    /// Begins work on `id`.
    pub(crate) fn hold(&self, id: &str) -> Hold {
        *self.lock().entry(id.to_owned()).or_default() += 1;
        Hold {
            held: self.clone(),
            id: id.to_owned(),
        }
    }

    /// Whether somebody is at work on `id`.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.lock().contains_key(id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut tasks = self.held.lock();
        if let Some(count) = tasks.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                tasks.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_held_until_the_last_task_lets_go() {
        let held = Held::default();
        let (seized, destroys) = (held.hold("a"), held.hold("a"));
        drop(seized);
        assert!(held.contains("a"));
        drop(destroys);
        assert!(!held.contains("a") && held.lock().is_empty());
    }

    #[tokio::test]
    async fn stop_waits_for_the_end() {
        let inflight = Inflight::default();
        let id = EnvironmentId::new("a");
        inflight.stop(&id).await;

        let registration = inflight.begin(&id);
        let (first, second) = tokio::join!(inflight.stop(&id), async {
            registration.cancelled().await;
            drop(registration);
        });
        assert_eq!((first, second), ((), ()));
        assert!(inflight.lock().is_empty());
    }
}
