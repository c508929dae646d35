//! Follows the verdicts of guests' probes.
//!
//! A watch is a question to the guest that is answered when its verdict is another one
//! than the last, or after a while: so a flip is known about a second later, and a guest
//! whose verdict stays costs one call a minute. The holder of the reconcile lease watches
//! every probed environment; the process that made one watches it at once, because the
//! next cycle may be half a minute away.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fuse_model::{AuditEntry, AuditKind, Environment, EnvironmentId, Health, State};
use fuse_redact::Redactor;
use tokio::task::AbortHandle;

use crate::{Control, error::chain, exec::Command};

/// How long a guest may keep the question; the call itself may take a little longer.
const QUESTION: Duration = Duration::from_secs(60);
/// Shortest pause between two questions.
const BETWEEN: Duration = Duration::from_millis(500);
/// Pause after a question that failed.
const PAUSE: Duration = Duration::from_secs(5);
/// Most of a verdict's text that is kept (bytes).
const TEXT_LIMIT: usize = 512;

/// Prints the verdict in a guest, up to 4 KiB of it, once it is not the text that
/// follows any more, or after 55 seconds.
const WAIT: [&str; 3] = ["/run/fused", "health", "--unlike"];

/// The watches of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watches {
    running: Arc<Mutex<HashMap<EnvironmentId, AbortHandle>>>,
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, HashMap<EnvironmentId, AbortHandle>> {
        // The map is whole after every operation, so a panicked holder left it usable.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the watches of everything that is not in `wanted`.
    fn keep(&self, wanted: &HashSet<EnvironmentId>) {
        self.lock().retain(|id, watch| {
            let keep = wanted.contains(id) && !watch.is_finished();
            if !keep {
                watch.abort();
            }
            keep
        });
    }
}

impl Control {
    /// Watches exactly the probed ones of these.
    pub(crate) fn watch_probes<'a>(&self, records: impl Iterator<Item = &'a Environment>) {
        let probed: Vec<_> = records
            .filter(|record| record.state == State::Running && record.probe.is_set())
            .collect();
        let wanted = probed.iter().map(|record| record.id.clone()).collect();
        self.inner.watches.keep(&wanted);
        for record in probed {
            self.watch_probe(record);
        }
    }

    /// Ends every watch: another process has taken over.
    pub(crate) fn watch_nothing(&self) {
        self.inner.watches.keep(&HashSet::new());
    }

    /// Watches an environment, if it is probed and this process does not yet.
    pub(crate) fn watch_probe(&self, record: &Environment) {
        if !record.probe.is_set() {
            return;
        }
        let mut running = self.inner.watches.lock();
        if running
            .get(&record.id)
            .is_some_and(|watch| !watch.is_finished())
        {
            return;
        }
        let (control, id) = (self.clone(), record.id.clone());
        let stop = self.stop_token().clone();
        let watch = self.spawn_abortable(async move {
            tokio::select! {
                () = control.follow_probe(&id) => {}
                () = stop.cancelled() => {}
            }
        });
        running.insert(record.id.clone(), watch);
    }

    /// Asks again and again, until the environment does not run any more.
    async fn follow_probe(&self, id: &EnvironmentId) {
        let mut last = String::new();
        loop {
            let record = match self.inner.store.environment_get(id).await {
                Ok(Some(record)) if record.state == State::Running => record,
                Ok(_) => return,
                Err(e) => {
                    tracing::debug!(vm_id = %id, error = %chain(&e), "cannot look at an environment");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            match self.ask_probe(&record, &last).await {
                Some(text) if text == last => {}
                Some(text) => {
                    self.take_verdict(&record, &text).await;
                    last = text;
                }
                None => {
                    // The verdict stays, but the guest may be another one the next time.
                    last.clear();
                    tokio::time::sleep(PAUSE).await;
                }
            }
            // Whatever answers in that guest, it gets no more than so many questions.
            tokio::time::sleep(BETWEEN).await;
        }
    }

    /// The text of the verdict, once it is not `last` any more; `None` on a failure.
    async fn ask_probe(&self, record: &Environment, last: &str) -> Option<String> {
        let (_, provider) = self
            .inner
            .providers
            .of(record.host_id.as_ref())
            .await
            .ok()?;
        if !provider.has_guest() {
            // Nothing will ever be there to read.
            std::future::pending::<()>().await;
        }
        let argv = WAIT.into_iter().chain([last]).map(str::to_owned).collect();
        let command = Command {
            argv,
            timeout: QUESTION,
        };
        let answer = provider.exec(&record.id, &command.request()).await.ok()?;
        let text = String::from_utf8(answer.stdout).ok()?;
        (answer.exit_code == 0 && !text.is_empty()).then_some(text)
    }

    async fn take_verdict(&self, record: &Environment, text: &str) {
        // Whatever a guest writes there, only a verdict is taken for one.
        let Ok(mut health) = serde_json::from_str::<Health>(text) else {
            return;
        };
        // The question may have been under way for a minute.
        let Ok(Some(record)) = self.inner.store.environment_get(&record.id).await else {
            return;
        };
        health.message = Redactor::default().clean_head(&health.message, TEXT_LIMIT);
        let before = record.probe.verdict().map(|verdict| verdict.state);
        let mut audit = Vec::new();
        if before != Some(health.state) {
            tracing::info!(vm_id = %record.id, health = health.state.as_str(), "health changed");
            audit.push(
                AuditEntry::new(AuditKind::VmHealthChanged, record.id.as_str())
                    .with("from", before.map(fuse_model::HealthState::as_str))
                    .with("to", health.state.as_str())
                    .with("message", health.message.as_str()),
            );
        }
        let stored = self
            .inner
            .store
            .environment_set_health(&record.id, health, audit);
        if let Err(e) = stored.await {
            tracing::warn!(vm_id = %record.id, error = %chain(&e), "cannot store a verdict");
        }
    }
}
