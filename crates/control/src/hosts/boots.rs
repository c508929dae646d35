//! The breaker: a host on which boots fail in a row gets no placements until one works.
//!
//! Failures that a request may cause are not the host's: those with an image of the
//! caller's choice, refusals, and an agent that is full or away do not count. Even so a
//! request could make a boot fail, so the first try comes with the next check: a host
//! that works is back within seconds.

use std::time::Duration;

use fuse_model::{Environment, EnvironmentId, EnvironmentSpec, Host, TaskId};
use fuse_store::{Breaker, later};
use fuse_wire_host::HostError;
use jiff::Timestamp;

use super::watch::text;
use crate::{
    Control,
    error::chain,
    provider::{FoundVm, NewVm, ProviderError},
};

/// Pause after the first try that failed; it doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// Memory of the VM of a try (MiB).
const RAM_MB: i32 = 512;

impl Control {
    /// Notes how the boot of an environment went on its host.
    pub(crate) async fn note_boot(
        &self,
        record: &Environment,
        outcome: &Result<FoundVm, ProviderError>,
    ) {
        let after = self.inner.settings.quarantine_after;
        let Some(host) = record.host_id.as_ref().filter(|_| after > 0) else {
            return;
        };
        let noted = match outcome {
            Ok(_) => self.inner.store.host_boot_worked(host).await,
            Err(e) if record.spec.image.is_empty() && is_the_hosts(e) => {
                let breaker = Breaker {
                    after,
                    retry_after: Duration::ZERO,
                };
                let newly = self
                    .inner
                    .store
                    .host_boot_failed(host, text(e), breaker)
                    .await;
                if let Ok(true) = newly {
                    tracing::warn!(host_id = %host, "boots fail in a row: host quarantined");
                }
                newly.map(|_| false)
            }
            Err(_) => return,
        };
        match noted {
            Ok(true) => tracing::info!(host_id = %host, "boots work again: host readmitted"),
            Ok(false) => {}
            Err(e) => {
                tracing::warn!(host_id = %host, error = %chain(&e), "cannot note a boot");
            }
        }
    }

    /// Boots a small VM on a quarantined host and removes it; if that works the host is
    /// back.
    pub(super) fn retry_boot(&self, host: &Host) {
        let task = TaskId::new(format!("boot check of host {}", host.id));
        let vm = EnvironmentId::for_task(&self.inner.settings.vm_prefix, &task);
        if !self.inner.retries.begin(&host.id, &vm) {
            return;
        }
        let (control, host) = (self.clone(), host.clone());
        self.spawn(async move {
            let stop = control.stop_token().clone();
            tokio::select! {
                () = control.try_boot(&host, &vm) => {}
                // What is left of it is an orphan, and those are destroyed.
                () = stop.cancelled() => {}
            }
            control.inner.retries.end(&host.id, &vm);
        });
    }

    async fn try_boot(&self, host: &Host, vm: &EnvironmentId) {
        let store = &self.inner.store;
        let noted = match self.boot_and_remove(host, vm).await {
            Ok(()) => store.host_boot_worked(&host.id).await.map(|readmitted| {
                if readmitted {
                    tracing::info!(host_id = %host.id, "a boot works again: host readmitted");
                }
            }),
            Err(error) => {
                tracing::warn!(host_id = %host.id, error, "a boot on a quarantined host failed");
                let tries = host.failed_boots.as_ref().map_or(0, |boots| boots.retries);
                store.host_retry_failed(&host.id, error, pause(tries)).await
            }
        };
        if let Err(e) = noted {
            tracing::warn!(host_id = %host.id, error = %chain(&e), "cannot note a boot");
        }
    }

    async fn boot_and_remove(&self, host: &Host, vm: &EnvironmentId) -> Result<(), String> {
        let lookup = self.inner.providers.of(Some(&host.id)).await;
        let (_, provider) = lookup.map_err(|e| chain(&e))?;
        let spec = EnvironmentSpec {
            cpus: 1,
            ram_mb: RAM_MB,
            storage_gb: 1,
            ..EnvironmentSpec::default()
        };
        let new = NewVm {
            id: vm,
            spec: &spec,
            owner: self.inner.store.fleet_id(),
            seed: None,
            gpu_uuids: &[],
        };
        let booted = provider.create(new).await;
        if let Err(e) = provider.destroy(vm).await {
            tracing::debug!(host_id = %host.id, error = %e.chain(), "cannot remove a tried VM");
        }
        booted.map(drop).map_err(|e| text(&e))
    }
}

/// Whether a try that was put off to `retry_at` is due. One that is further away than any pause was
/// put off by a clock that has been put back since.
pub(super) fn is_due(retry_at: Timestamp, now: Timestamp) -> bool {
    retry_at <= now || retry_at > later(now, LONGEST_PAUSE)
}

fn pause(tries: i32) -> Duration {
    let doublings = u32::try_from(tries).unwrap_or(0).min(16);
    FIRST_PAUSE
        .saturating_mul(1 << doublings)
        .min(LONGEST_PAUSE)
}

/// Whether a failed boot says something about the host.
fn is_the_hosts(error: &ProviderError) -> bool {
    match error {
        ProviderError::Unsupported { .. } => false,
        ProviderError::Host(e) => match e {
            HostError::Agent { .. }
            | HostError::NoAnswer { .. }
            | HostError::TooLarge { .. }
            | HostError::Malformed { .. } => true,
            HostError::Unauthorized { .. }
            | HostError::Generation { .. }
            | HostError::NotFound { .. }
            | HostError::Conflict { .. }
            | HostError::NotUpgraded { .. }
            | HostError::Silent { .. }
            | HostError::BadRequest { .. }
            | HostError::Busy { .. }
            | HostError::Unreachable { .. } => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_put_back_keeps_no_host_in_quarantine() {
        let at = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).unwrap();
        assert!(is_due(at(0), at(0)) && is_due(at(0), at(1)));
        assert!(!is_due(at(1), at(0)) && !is_due(at(600), at(0)));
        assert!(is_due(at(601), at(0)));
    }

    #[test]
    fn pauses_double_up_to_ten_minutes() {
        let seconds: Vec<u64> = [0, 1, 2, 5, 99, -1]
            .into_iter()
            .map(|tries| pause(tries).as_secs())
            .collect();
        assert_eq!(seconds, [30, 60, 120, 600, 600, 30]);
    }
}
