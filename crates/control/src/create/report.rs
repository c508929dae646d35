//! What is kept of a create that failed: how it was placed, how long its steps took, and what the
//! guest printed, because everything else of it is undone.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use fuse_model::{Environment, EnvironmentId, TaskFailure, TaskId};
use fuse_redact::Redactor;
use fuse_wire_api::{StepTiming, TaskFailure as Report, TaskPlacement};
use fuse_wire_host::{CreateTimings, LogSource};

use super::failure::BootError;
use crate::{Control, error::chain, provider::Provider};

/// How long it is kept.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// Most of each output that is kept (bytes).
const OUTPUT_KEPT: usize = 64 * 1024;
/// How long a host may take to give an output.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// How an accepted create was placed, and how far it has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    placement: TaskPlacement,
    steps: Mutex<Vec<StepTiming>>,
}

impl Progress {
    pub(super) fn placed(placement: TaskPlacement) -> Self {
        Self {
            placement,
            steps: Mutex::default(),
        }
    }

    /// Notes how long a step takes.
    pub(super) async fn measure<T>(&self, step: &str, work: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let done = work.await;
        self.note(step, begun.elapsed().as_secs_f64() * 1e3);
        done
    }

    /// Notes the steps of the host.
    pub(super) fn note_host(&self, timings: &CreateTimings) {
        for (step, took) in &timings.steps {
            self.note(&format!("host.{step}"), *took);
        }
        if timings.queued > 0.0 {
            self.note("host.queued", timings.queued);
        }
    }

    fn note(&self, step: &str, duration_ms: f64) {
        let duration_ms = (duration_ms * 1e3).round() / 1e3;
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push(StepTiming {
            step: step.to_owned(),
            duration_ms,
        });
    }

    fn report(&self, step: &str) -> Report {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        Report {
            step: step.to_owned(),
            placement: self.placement.clone(),
            timings: steps.clone(),
            ..Report::default()
        }
    }
}

/// What a guest printed.
#[derive(Debug, Default)]
struct Printed {
    console: String,
    agent: String,
}

impl Control {
    /// Keeps what is known of a failed create while its VM is still there. Best effort: losing it is
    /// no reason to keep anything else waiting.
    pub(super) async fn keep_failure(
        &self,
        record: &Environment,
        failed: &BootError,
        progress: &Progress,
        redactor: &Redactor,
    ) {
        let Some(task) = &record.task_id else {
            return;
        };
        let printed = self.printed(record, failed, progress).await;
        let clean = |text: &str| redactor.clean_tail(text.as_bytes(), OUTPUT_KEPT);
        let failure = Kept {
            report: progress.report(failed.step()),
            console: clean(&printed.console),
            agent: clean(&printed.agent),
        };
        self.store_failure(task, &record.id, failure).await;
    }

    /// Keeps what is known of a create that an orchestrator left half-way, while its VM is still
    /// there, if it is.
    pub(crate) async fn keep_interrupted(&self, record: &Environment) {
        let Some(task) = &record.task_id else {
            return;
        };
        let placement = TaskPlacement {
            host_id: record
                .host_id
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            ..TaskPlacement::default()
        };
        let printed = match self.inner.providers.of(record.host_id.as_ref()).await {
            Ok((_, provider)) if provider.has_guest() => read_both(&*provider, &record.id).await,
            Ok(_) | Err(_) => Printed::default(),
        };
        let redactor = self.redactor_of(&record.id).await;
        let clean = |text: &str| redactor.clean_tail(text.as_bytes(), OUTPUT_KEPT);
        let failure = Kept {
            report: Progress::placed(placement).report("interrupted"),
            console: clean(&printed.console),
            agent: clean(&printed.agent),
        };
        self.store_failure(task, &record.id, failure).await;
    }

    /// Keeps why there was no host for a task.
    pub(super) async fn keep_refusal(
        &self,
        task: &TaskId,
        id: &EnvironmentId,
        rejected: BTreeMap<String, String>,
    ) {
        let placement = TaskPlacement {
            policy: self.inner.settings.placement_policy.as_str().to_owned(),
            rejected,
            ..TaskPlacement::default()
        };
        let kept = Kept {
            report: Progress::placed(placement).report("placement"),
            console: String::new(),
            agent: String::new(),
        };
        self.store_failure(task, id, kept).await;
    }

    async fn store_failure(&self, task: &TaskId, id: &EnvironmentId, kept: Kept) {
        let store = &self.inner.store;
        let now = store.now();
        let failure = TaskFailure {
            // A report of plain fields always serialises.
            report: serde_json::to_string(&kept.report).unwrap_or_default(),
            console: kept.console,
            agent: kept.agent,
            kept_until: now.checked_add(KEPT_FOR).unwrap_or(now),
        };
        if let Err(e) = store.task_set_failure(task, id, failure).await {
            tracing::warn!(vm_id = %id, error = %chain(&e), "cannot keep what is known of a failed create");
        }
    }

    async fn printed(
        &self,
        record: &Environment,
        failed: &BootError,
        progress: &Progress,
    ) -> Printed {
        let Ok((_, provider)) = self.inner.providers.of(record.host_id.as_ref()).await else {
            return Printed::default();
        };
        if !provider.has_guest() || !failed.may_have_made_a_vm() {
            return Printed::default();
        }
        if matches!(failed, BootError::Boot(_)) {
            // The host has undone it, and remembers.
            let asked = tokio::time::timeout(READ_LIMIT, provider.failed_create(&record.id)).await;
            let Ok(Ok(Some(remembered))) = asked else {
                return Printed::default();
            };
            if remembered.owner.as_deref() != Some(self.inner.store.fleet_id().as_str()) {
                return Printed::default();
            }
            progress.note_host(&remembered.timings_ms);
            return Printed {
                console: remembered.console,
                agent: String::new(),
            };
        }
        read_both(&*provider, &record.id).await
    }
}

/// A failed create as it is stored.
#[derive(Debug)]
struct Kept {
    report: Report,
    console: String,
    agent: String,
}

async fn read_both(provider: &dyn Provider, vm: &EnvironmentId) -> Printed {
    let (console, agent) = tokio::join!(
        read(provider, vm, LogSource::Console),
        read(provider, vm, LogSource::Agent),
    );
    Printed { console, agent }
}

/// Everything that a log holds, or what came of it in time.
async fn read(provider: &dyn Provider, vm: &EnvironmentId, source: LogSource) -> String {
    let mut text = Vec::new();
    let reading = async {
        let mut stream = provider.logs(vm, source, false).await.ok()?;
        while let Ok(Some(chunk)) = stream.chunk().await {
            text.extend_from_slice(&chunk);
            if text.len() > 2 * fuse_wire_host::MAX_LOG_BYTES {
                text.drain(..text.len() - fuse_wire_host::MAX_LOG_BYTES);
            }
        }
        Some(())
    };
    // What came until then is better than nothing.
    let _late = tokio::time::timeout(READ_LIMIT, reading).await;
    String::from_utf8_lossy(&text).into_owned()
}
