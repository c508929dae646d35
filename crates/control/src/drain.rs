//! Drains an environment: its workload is asked to stop, and nothing more. `draining` is
//! stored before the drain command runs, so that a command that never answers, or a
//! process that dies in the middle, leaves an environment that says what was begun.

use std::time::Duration;

use fuse_model::{AuditEntry, AuditKind, Environment, EnvironmentId, OperationKind, Trigger};
use fuse_store::{Change, Guarded, OperationChange};
use fuse_wire_host::HostError;

use crate::{
    Control, Error,
    control::OPERATION_TTL,
    error::{Missing, chain},
    operation::{busy, not_running, shell},
    provider::{LookupError, ProviderError},
};

/// Bound of the drain command.
const LIMIT: Duration = Duration::from_secs(30);
/// Most of a failure's text that is stored (bytes).
const TEXT_LIMIT: usize = 4096;

/// What the built-in profile runs: the guest agent stops what it has started. In an
/// image with a guest agent of another kind that is its unit or its process; PID 1 is
/// the guest itself and must not be stopped. A non-zero status means that nothing was.
const DRAIN_COMMAND: &str = "\
    if command -v fused >/dev/null 2>&1; then exec fused drain; fi; \
    if command -v systemctl >/dev/null 2>&1 && systemctl is-active -q fused; then \
    exec systemctl stop fused; fi; \
    stopped=1; for pid in $(pidof fused); do \
    [ \"$pid\" -ne 1 ] && kill -TERM \"$pid\" && stopped=0; done; exit $stopped";

/// What a crash leaves to read.
pub(crate) const INTERRUPTED: &str =
    "drain command: interrupted by an orchestrator crash, it may not have finished";

/// What came of a drain command.
pub(crate) enum Outcome {
    Drained,
    /// There is no VM to run it in.
    NoVm,
    Failed(String),
}

impl Control {
    /// Asks the workload of a running environment to stop. `None` when the record
    /// vanished meanwhile.
    ///
    /// # Errors
    /// It does not exist, does not run, or somebody is at work on it; or the drain
    /// command failed: then it stays `draining`.
    pub async fn environment_drain(
        &self,
        id: &EnvironmentId,
    ) -> Result<Option<Environment>, Error> {
        let control = self.clone();
        let id = id.clone();
        self.detached(async move {
            let record = control.begin_drain(&id).await?;
            match control.holding(&id, control.drain_command(&record)).await {
                Ok(outcome) => control.end_drain(&record, outcome).await,
                // Whoever took it over (a destroy) answers for the rest.
                Err(_lost) => Ok(control.inner.store.environment_get(&id).await?),
            }
        })
        .await
    }

    async fn begin_drain(&self, id: &EnvironmentId) -> Result<Environment, Error> {
        loop {
            let record = self.environment_get(id).await?;
            self.check_free(&record, not_running)?;
            let change = Change {
                operation: OperationChange::Begin(OperationKind::Drain, OPERATION_TTL),
                audit: vec![AuditEntry::new(AuditKind::VmDraining, id.as_str())],
                ..Change::default()
            };
            let stored = self
                .record_transition(&record, Trigger::DrainRequested, change)
                .await?;
            match stored {
                Guarded::Updated(record) => return Ok(record),
                Guarded::Missing => return Err(Missing::Environment(id.clone()).into()),
                Guarded::Busy(operation) => return Err(busy(id, operation.kind)),
                Guarded::Stale => {}
            }
        }
    }

    /// Runs the drain command, whoever holds the operation.
    pub(crate) async fn drain_command(&self, record: &Environment) -> Outcome {
        let provider = match self.inner.providers.of(record.host_id.as_ref()).await {
            Ok((_, provider)) => provider,
            Err(LookupError::UnknownHost(_)) => return Outcome::NoVm,
            Err(e) => return Outcome::Failed(chain(&e)),
        };
        if !provider.has_guest() {
            return Outcome::Drained;
        }
        let request = shell(DRAIN_COMMAND, LIMIT).request();
        match provider.exec(&record.id, &request).await {
            Ok(answer) if answer.timed_out => {
                Outcome::Failed(format!("it did not end within {LIMIT:?}"))
            }
            Ok(answer) if answer.exit_code == 0 => Outcome::Drained,
            Ok(answer) => {
                let said = [answer.stderr, answer.stdout]
                    .into_iter()
                    .map(|output| String::from_utf8_lossy(&output).trim().to_owned())
                    .find(|text| !text.is_empty());
                let status = format!("exit status {}", answer.exit_code);
                Outcome::Failed(said.map_or(status.clone(), |said| format!("{status}: {said}")))
            }
            Err(ProviderError::Host(HostError::NotFound { .. })) => Outcome::NoVm,
            Err(e) => Outcome::Failed(e.chain()),
        }
    }

    async fn end_drain(
        &self,
        record: &Environment,
        outcome: Outcome,
    ) -> Result<Option<Environment>, Error> {
        let entry = |kind| AuditEntry::new(kind, record.id.as_str());
        let (error, audit) = match &outcome {
            Outcome::Drained => (String::new(), entry(AuditKind::VmDrained)),
            Outcome::NoVm => (
                "drain command: there is no vm to run it in".to_owned(),
                entry(AuditKind::VmDrainSkipped).with("reason", "no_environment"),
            ),
            Outcome::Failed(why) => {
                let redactor = self.redactor_of(&record.id).await;
                let text = redactor.clean_head(&format!("drain command: {why}"), TEXT_LIMIT);
                let audit = entry(AuditKind::VmDrainFailed).with("error", text.as_str());
                (text, audit)
            }
        };
        tracing::info!(vm_id = %record.id, error, "environment drained");
        let change = Change {
            error: Some(error.clone()),
            audit: vec![audit],
            ..Change::default()
        };
        let drained = self.end_operation(record, change).await?;
        match (outcome, drained) {
            (Outcome::Failed(_), _) => Err(Error::Failed(error)),
            (_, Some(drained)) => Ok(Some(drained)),
            // Somebody destroys it: what is there is what is to be seen.
            (_, None) => Ok(self.inner.store.environment_get(&record.id).await?),
        }
    }
}
