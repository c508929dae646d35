//! Finishes or undoes operations whose process died or stalled (lifecycle 17).
//!
//! A create whose guest agent serves had every step but the last, so it is adopted:
//! fresh credentials, the guest agent started again (which also tells the published
//! ports once more), then `running`. Anything less is destroyed. A host that does not
//! answer leaves its environments as they are.

use std::sync::Arc;

use fuse_model::{Environment, OperationKind, State, Trigger};
use fuse_store::{Change, Guarded, OperationChange, StoreError, TaskChange};
use futures_util::{StreamExt as _, stream};

use super::PARALLEL;
use crate::{
    Control, Error, audit,
    control::OPERATION_TTL,
    create::start_request,
    drain::INTERRUPTED,
    error::chain,
    exec::Command,
    guest,
    provider::{FoundVm, Provider, upload_request},
};

/// Interrupted operations that are looked at in one go.
pub(super) const BATCH: u32 = 256;
/// Bound of the question whether a guest agent serves.
const SERVES_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);
/// Succeeds when something listens on the guest agent's port (9550 = 0x254E), by
/// means that every guest with a shell has.
const SERVES: &str = "for f in /proc/net/tcp /proc/net/tcp6; do [ -r $f ] || continue; \
    while read -r _ local _ state _; do \
    case \"$local $state\" in *:254E\\ 0A) exit 0;; esac; done < $f; done; exit 1";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Whether a migration is under way, from or to it.
pub(super) fn is_migrating(record: &Environment) -> bool {
    let operation = record.operation.as_ref();
    operation.is_some_and(|operation| operation.kind == OperationKind::Migrate)
}

impl Control {
    /// Looks at every interrupted operation once.
    pub(super) async fn pick_up_interrupted(&self) -> Result<(), StoreError> {
        let interrupted = self.inner.store.environment_list_interrupted(BATCH).await?;
        stream::iter(interrupted)
            .for_each_concurrent(PARALLEL, |record| async move {
                // What this very process could not renew in time goes on, and so does what
                // has expired because the clock was set.
                if self.inner.inflight.contains(&record.id) || self.is_at_work(&record) {
                    return;
                }
                tracing::info!(vm_id = %record.id, state = %record.state, "found an interrupted operation");
                if let Err(e) = self.pick_up(&record).await {
                    tracing::warn!(
                        vm_id = %record.id, error = %chain(&*e),
                        "cannot finish an interrupted operation yet"
                    );
                }
            })
            .await;
        Ok(())
    }

    async fn pick_up(&self, record: &Environment) -> Result<(), Failure> {
        match record.state {
            // What was to take another's place has not, and that one goes on.
            State::Provisioning if is_migrating(record) => self.give_up_and_destroy(record).await,
            State::Provisioning => self.pick_up_create(record).await,
            State::Destroying => match self.begin_destroy(record).await? {
                Some(record) => Ok(self.finish_destroy(record).await?),
                None => Ok(()),
            },
            State::Running | State::Draining => self.pick_up_operation(record).await,
            // Such records do not exist.
            State::Destroyed | State::Failed => Ok(()),
        }
    }

    /// What an operation on a running environment left behind. It is taken under its own
    /// kind, so that what cannot be done now is found again.
    async fn pick_up_operation(&self, record: &Environment) -> Result<(), Failure> {
        let kind = record.operation.as_ref().map(|operation| operation.kind);
        let begin = Change {
            operation: OperationChange::Begin(
                kind.unwrap_or(OperationKind::Recover),
                OPERATION_TTL,
            ),
            ..Change::default()
        };
        let Guarded::Updated(record) = self.record_update(record, begin).await? else {
            return Ok(());
        };
        let change = match kind {
            // Whichever credentials are in force: new ones settle it.
            Some(OperationKind::Rotate) => return Ok(self.rotate(&record).await?),
            Some(OperationKind::Drain) => Change {
                error: Some(INTERRUPTED.to_owned()),
                ..Change::default()
            },
            Some(OperationKind::Snapshot) => {
                self.drop_unrecorded_snapshots(&record).await?;
                Change::default()
            }
            Some(OperationKind::Restore) => self.pick_up_restore(&record).await?,
            Some(OperationKind::Migrate) => self.pick_up_migration(&record).await?,
            Some(OperationKind::Create | OperationKind::Destroy | OperationKind::Recover)
            | None => Change::default(),
        };
        // Whatever came of it, the next look shows.
        self.end_operation(&record, change).await?;
        Ok(())
    }

    async fn pick_up_create(&self, record: &Environment) -> Result<(), Failure> {
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        // An unreachable host ends it here: nothing was written, it is looked at again.
        let found = provider.find(&record.id).await?;
        let ours = self.inner.store.fleet_id().as_str();
        let change = Change {
            operation: OperationChange::Begin(OperationKind::Recover, OPERATION_TTL),
            ..Change::default()
        };
        let Guarded::Updated(record) = self.record_update(record, change).await? else {
            return Ok(());
        };
        match found {
            Some(vm) if vm.owner.as_deref().is_some_and(|owner| owner != ours) => {
                // Another fleet's VM of the same name must not be touched.
                match self.give_up(&record).await? {
                    Some(record) => Ok(self.remove_destroyed(&record).await?),
                    None => Ok(()),
                }
            }
            Some(vm) => {
                let found_ours = vm.owner.as_deref() == Some(ours);
                let adopted = self
                    .holding(&record.id, self.adopt(&record, provider, vm))
                    .await;
                match adopted {
                    Ok(Ok(())) | Err(_) => Ok(()),
                    Ok(Err(e)) => {
                        tracing::warn!(
                            vm_id = %record.id, error = %chain(&*e),
                            "an interrupted create cannot be adopted, destroying it"
                        );
                        if found_ours {
                            self.keep_interrupted(&record).await;
                        }
                        self.give_up_and_destroy(&record).await
                    }
                }
            }
            None => self.give_up_and_destroy(&record).await,
        }
    }

    async fn adopt(
        &self,
        record: &Environment,
        provider: Arc<dyn Provider>,
        vm: FoundVm,
    ) -> Result<(), Failure> {
        let mut change = Change {
            url: Some(vm.url),
            boot_id: vm.boot_id,
            guest_version: vm.guest_version,
            task: TaskChange::Running,
            operation: OperationChange::End,
            audit: audit::adopted(record),
            ..Change::default()
        };
        if provider.has_guest() {
            self.restart_agent(record, &*provider, &mut change).await?;
        }
        let stored = self
            .record_transition(record, Trigger::Started, change)
            .await?;
        if let Guarded::Updated(record) = stored {
            tracing::info!(vm_id = %record.id, "adopted an interrupted create");
        }
        Ok(())
    }

    /// Checks that the guest agent serves, then gives it credentials that we know.
    async fn restart_agent(
        &self,
        record: &Environment,
        provider: &dyn Provider,
        change: &mut Change,
    ) -> Result<(), Failure> {
        let argv = ["sh", "-c", SERVES].map(str::to_owned).to_vec();
        let question = Command {
            argv,
            timeout: SERVES_LIMIT,
        }
        .request();
        let answer = provider.exec(&record.id, &question).await?;
        if answer.exit_code != 0 {
            return Err("its guest agent does not serve yet".into());
        }
        let stored = self.request_of(&record.id).await?;
        let credentials = self.new_credentials(&record.id)?;
        if let Some(credentials) = &credentials {
            let files = guest::credential_files(credentials).to_vec();
            provider.upload(&record.id, &upload_request(files)).await?;
        }
        let start = start_request(&self.inner.settings, &stored, credentials.is_some());
        change.endpoints = Some(provider.start_agent(&record.id, &start).await?);
        change.guest_token = credentials.map(|made| made.token);
        Ok(())
    }

    async fn give_up_and_destroy(&self, record: &Environment) -> Result<(), Failure> {
        match self.give_up(record).await? {
            Some(record) => Ok(self.finish_destroy(record).await?),
            None => Ok(()),
        }
    }

    /// `destroying`, with its task failed; `None` when somebody else was faster.
    async fn give_up(&self, record: &Environment) -> Result<Option<Environment>, Error> {
        let change = Self::interrupted(record);
        let stored = self
            .record_transition(record, Trigger::NotRecovered, change)
            .await?;
        match stored {
            Guarded::Updated(record) => Ok(Some(record)),
            Guarded::Stale | Guarded::Missing | Guarded::Busy(_) => Ok(None),
        }
    }
}
