//! The handle on the control plane: what every use case needs, shared by all of them.

use std::{future::Future, sync::Arc, time::Duration};

use fuse_model::{AuditEntry, Environment, EnvironmentId, Redacted};
use fuse_store::{Store, StoreError};
use fuse_wire_host::client::TransportError;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Error, Settings,
    create::Fleet,
    events::Hub,
    health::Watches,
    hosts::Retries,
    inflight::{Held, Inflight},
    keys::Keys,
    metrics::Metrics,
    provider::Providers,
    reconcile::{Evicting, Progress, Renewing},
};

/// How long an operation is believed without a sign of life of its process.
pub(crate) const OPERATION_TTL: Duration = Duration::from_secs(60);
/// Audit entries outside of use cases that are being written at a time.
const AUDITS_IN_FLIGHT: usize = 64;
/// How often a running operation says that it is alive.
const RENEW_EVERY: Duration = Duration::from_secs(20);

/// The control plane; clones share it.
#[derive(Debug, Clone)]
pub struct Control {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) settings: Settings,
    pub(crate) providers: Providers,
    pub(crate) hub: Hub,
    pub(crate) inflight: Inflight,
    pub(crate) held: Held,
    pub(crate) retries: Retries,
    pub(crate) evicting: Evicting,
    pub(crate) renewing: Renewing,
    pub(crate) watches: Watches,
    pub(crate) keys: Keys,
    pub(crate) fleet: Fleet,
    pub(crate) progress: Progress,
    pub(crate) metrics: Metrics,
    /// Wakes the reconcile loop before its time.
    pub(crate) wake: Notify,
    audits: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The operation on an environment is no longer this process's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseLost;

impl Control {
    /// Builds the control plane on an open store. [`Control::run`] starts its loops.
    ///
    /// # Errors
    /// The HTTP client for host agents cannot be built.
    pub fn new(store: Store, settings: Settings) -> Result<Self, TransportError> {
        let default = settings
            .default_backend
            .as_ref()
            .map(|(url, token)| (url.clone(), Redacted::new(token.expose().clone())));
        let providers = Providers::new(store.clone(), default, &settings.agent_roots)?;
        let metrics = Metrics::new();
        let inner = Inner {
            hub: Hub::new(store.clone(), metrics.coalesced.clone()),
            store,
            settings,
            providers,
            inflight: Inflight::default(),
            held: Held::default(),
            retries: Retries::default(),
            evicting: Evicting::default(),
            renewing: Renewing::default(),
            watches: Watches::default(),
            keys: Keys::default(),
            fleet: Fleet::default(),
            progress: Progress::default(),
            metrics,
            wake: Notify::new(),
            audits: Arc::new(Semaphore::new(AUDITS_IN_FLIGHT)),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Reads once what recovery is going to need, and tries the keys on it. A store that
    /// cannot be read in full would only be found out by one failing cycle after the
    /// other. What the hosts say is no part of it: they may come back later.
    ///
    /// # Errors
    /// The store fails, or a record in it cannot be understood.
    pub async fn check_recovery(&self) -> Result<(), StoreError> {
        self.read_table().await?;
        self.inner.store.host_list_all().await?;
        self.inner.store.environment_list_interrupted(1).await?;
        self.check_keys().await
    }

    /// Starts the loops: event delivery, reconcile, and the watch over hosts.
    pub fn run(&self) {
        let events = self.clone();
        self.inner.tasks.spawn(async move {
            let stop = events.inner.stop.clone();
            events.inner.hub.run(stop).await;
        });
        let reconcile = self.clone();
        self.inner
            .tasks
            .spawn(async move { reconcile.reconcile_loop().await });
        let watch = self.clone();
        self.inner
            .tasks
            .spawn(async move { watch.watch_hosts().await });
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// What is counted, up to now.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        let failures = self.inner.store.write_failures();
        self.inner
            .metrics
            .count_write_failures(failures.into_iter());
        &self.inner.metrics
    }

    /// Writes an audit entry that belongs to no use case, without waiting for it. Under
    /// a flood of refused requests the store is worth more than every single entry, so
    /// that only so many are on their way at a time.
    pub fn audit(&self, entry: AuditEntry) {
        let Ok(permit) = self.inner.audits.clone().try_acquire_owned() else {
            tracing::warn!(
                kind = entry.kind.as_str(),
                "too many audit entries, leaving one out"
            );
            return;
        };
        let control = self.clone();
        self.spawn(async move {
            let _permit = permit;
            if let Err(e) = control.inner.store.audit_insert(vec![entry]).await {
                tracing::warn!(error = %crate::error::chain(&e), "cannot write an audit entry");
            }
        });
    }

    /// Ends event streams and loops; operations go on.
    pub fn begin_shutdown(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
    }

    /// Completes when [`Control::begin_shutdown`] was called.
    pub async fn stopping(&self) {
        self.inner.stop.cancelled().await;
    }

    /// Waits until the last operation has ended.
    pub async fn finished(&self) {
        self.inner.tasks.wait().await;
    }

    /// Runs something as a task of its own that shutdown waits for.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inner.tasks.spawn(work);
    }

    /// As [`Control::spawn`], and can be ended before its end.
    pub(crate) fn spawn_abortable(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        self.inner.tasks.spawn(work).abort_handle()
    }

    pub(crate) fn stop_token(&self) -> &CancellationToken {
        &self.inner.stop
    }

    /// Runs a use case as a task of its own: it goes on to its end when the caller
    /// stops waiting, and shutdown waits for it. Also one that was asked for before the
    /// listener closed is run, or a restart would fail requests for no reason.
    pub(crate) async fn detached<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        self.inner.tasks.spawn(async move {
            // An error here means that the caller stopped waiting.
            let _gone = sender.send(work.await);
        });
        receiver.await.unwrap_or(Err(Error::ShuttingDown))
    }

    /// Whether this very process is at work on the environment. The store lets a replica
    /// begin an operation that it holds already; two tasks of one replica are told
    /// apart here, and the version of the record keeps the answer true until the write.
    /// What this process holds has not expired, whatever the clock was set to meanwhile.
    pub(crate) fn is_at_work(&self, record: &Environment) -> bool {
        let now = self.inner.store.now();
        record.operation.as_ref().is_some_and(|operation| {
            operation.owner == *self.inner.store.replica_id()
                && (operation.expires_at > now || self.inner.held.contains(record.id.as_str()))
        })
    }

    /// Whether anybody is at work on the environment.
    pub(crate) fn is_busy(&self, record: &Environment) -> bool {
        let now = self.inner.store.now();
        let operation = record.operation.as_ref();
        operation.is_some_and(|operation| operation.expires_at > now) || self.is_at_work(record)
    }

    /// Runs `work` on an environment whose operation this process holds, and renews
    /// the operation meanwhile. Gives up when somebody else took it over.
    pub(crate) async fn holding<T>(
        &self,
        id: &EnvironmentId,
        work: impl Future<Output = T>,
    ) -> Result<T, LeaseLost> {
        let _held = self.inner.held.hold(id.as_str());
        tokio::pin!(work);
        tokio::select! {
            outcome = &mut work => Ok(outcome),
            lost = self.renew_until_lost(id) => Err(lost),
        }
    }

    async fn renew_until_lost(&self, id: &EnvironmentId) -> LeaseLost {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            match self
                .inner
                .store
                .environment_operation_renew(id, OPERATION_TTL)
                .await
            {
                Ok(true) => {}
                Ok(false) => return LeaseLost,
                // The lease outlives two missed renewals; the next one may get through.
                Err(e) => warn_store(id, &e),
            }
        }
    }
}

fn warn_store(id: &EnvironmentId, error: &StoreError) {
    tracing::warn!(vm_id = %id, error = %crate::error::chain(error), "cannot renew an operation");
}
