//! Watches hosts: asks every agent at an interval whether it answers, and lets hosts
//! back in on which boots failed in a row.
//!
//! Done by the replica that holds the reconcile lease. What is found is stored, so that
//! every replica places by it and shows it.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use fuse_model::{AgentCheck, AuditEntry, AuditKind, EnvironmentId, Host, HostId, HostState};
use fuse_store::StoreError;
use fuse_wire_host::Capacity;
use futures_util::{StreamExt as _, stream};
use tokio::time::{MissedTickBehavior, interval};

use super::boots::is_due;
use crate::{Control, error::chain, provider::ProviderError};

/// Hosts asked side by side.
const ASK_PARALLEL: usize = 256;
/// How long an agent may take to answer. A host that needs longer is no place to boot.
const PATIENCE: Duration = Duration::from_secs(5);

/// Hosts on which a boot is being tried, with the VM of it.
#[derive(Debug, Default)]
pub(crate) struct Retries(Mutex<HashSet<(HostId, EnvironmentId)>>);

impl Retries {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<(HostId, EnvironmentId)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `false` when one is under way.
    pub(super) fn begin(&self, host: &HostId, vm: &EnvironmentId) -> bool {
        self.lock().insert((host.clone(), vm.clone()))
    }

    pub(super) fn end(&self, host: &HostId, vm: &EnvironmentId) {
        self.lock().remove(&(host.clone(), vm.clone()));
    }

    /// Whether a VM without a record is the one of a try.
    pub(crate) fn has_vm(&self, id: &str) -> bool {
        self.lock().iter().any(|(_, vm)| vm.as_str() == id)
    }
}

impl Control {
    /// Runs until shutdown.
    pub(crate) async fn watch_hosts(&self) {
        let mut tick = interval(self.inner.settings.host_check_interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let rounds = async {
            loop {
                tick.tick().await;
                self.check_hosts().await;
            }
        };
        tokio::select! {
            () = rounds => {}
            () = self.stopping() => {}
        }
    }

    async fn check_hosts(&self) {
        match self.holds_reconcile_lease().await {
            Ok(true) => {}
            Ok(false) => return,
            Err(e) => return log(&e, "cannot take the reconcile lease"),
        }
        let hosts = match self.inner.store.host_list_all().await {
            Ok(hosts) => hosts,
            Err(e) => return log(&e, "cannot read the hosts"),
        };
        let questions: Vec<_> = hosts
            .iter()
            .enumerate()
            .map(|(at, host)| {
                let (control, id) = (self.clone(), host.id.clone());
                async move { (at, control.check_host(&id).await) }
            })
            .collect();
        let mut checking = stream::iter(questions).buffer_unordered(ASK_PARALLEL);
        let (mut checks, mut audit) = (Vec::with_capacity(hosts.len()), Vec::new());
        while let Some((at, check)) = checking.next().await {
            let Some(host) = hosts.get(at) else { continue };
            audit.extend(news(host, &check));
            checks.push((host.id.clone(), check));
        }
        let unreachable: HashSet<HostId> = checks
            .iter()
            .filter(|(_, check)| !check.is_reachable())
            .map(|(id, _)| id.clone())
            .collect();
        if let Err(e) = self.inner.store.host_checks_store(checks, audit).await {
            log(&e, "cannot store the checks of hosts");
        }
        let now = self.inner.store.now();
        for host in &hosts {
            let due = host.failed_boots.as_ref().is_some_and(|boots| {
                boots.quarantined_at.is_some() && boots.retry_at.is_none_or(|at| is_due(at, now))
            });
            if due && host.state == HostState::Active && !unreachable.contains(&host.id) {
                self.retry_boot(host);
            }
        }
    }

    async fn check_host(&self, id: &HostId) -> AgentCheck {
        let asked = tokio::time::timeout(PATIENCE, async {
            let (_, provider) = self
                .inner
                .providers
                .of(Some(id))
                .await
                .map_err(|e| chain(&e))?;
            provider.capacity().await.map_err(|e| chain(&e))
        });
        let found = asked
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")));
        check(self.inner.store.now(), found)
    }
}

/// What an answer of an agent, or none, says about it.
pub(crate) fn check(now: jiff::Timestamp, found: Result<Option<Capacity>, String>) -> AgentCheck {
    let (capacity, error) = match found {
        Ok(capacity) => (capacity, None),
        Err(error) => (None, Some(error)),
    };
    AgentCheck {
        checked_at: now,
        changed_at: now,
        error,
        guests: capacity
            .as_ref()
            .and_then(|found| found.guests.map(i64::from)),
        disk_free_gb: capacity
            .as_ref()
            .and_then(|found| i64::try_from(found.storage_gb).ok()),
        version: capacity.and_then(|found| found.version).unwrap_or_default(),
    }
}

/// What there is to tell when a host begins or ceases to answer. The first answer of a
/// host is no news.
fn news(host: &Host, check: &AgentCheck) -> Option<AuditEntry> {
    let before = host.agent.as_ref().is_none_or(AgentCheck::is_reachable);
    match &check.error {
        Some(error) if before => {
            tracing::warn!(host_id = %host.id, error, "the agent of a host does not answer");
            let entry = AuditEntry::new(AuditKind::HostUnreachable, host.id.as_str());
            Some(entry.with("error", error.as_str()))
        }
        None if !before => {
            tracing::info!(host_id = %host.id, "the agent of a host answers again");
            Some(AuditEntry::new(AuditKind::HostReachable, host.id.as_str()))
        }
        Some(_) | None => None,
    }
}

fn log(error: &StoreError, what: &'static str) {
    tracing::warn!(error = %chain(error), "{what}");
}

/// The text of a provider's failure for the record.
pub(super) fn text(error: &ProviderError) -> String {
    let mut text = error.chain();
    let end = (0..=512).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or_default().min(text.len()));
    text
}
