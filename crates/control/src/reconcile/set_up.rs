//! Sets a guest up again that has booted anew (its host was restarted, or the VM was):
//! what was written into its memory is gone, its disk and so the caller's files are
//! not. The startup script does not run again; services come up again, in the background.

use std::sync::Arc;

use fuse_model::{Environment, OperationKind};
use fuse_store::{Change, Guarded, OperationChange, SecretMap};
use fuse_wire_api::Manifest;

use crate::{
    Control, Error, audit,
    control::OPERATION_TTL,
    create::{StoredRequest, services_again, start_request},
    error::chain,
    guest::{self, Credentials, FileSources},
    provider::{FoundVm, Provider, upload_request},
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Control {
    pub(super) async fn set_up_again(&self, record: &Environment) -> Result<(), Failure> {
        if self.is_at_work(record) {
            return Ok(());
        }
        let begin = Change {
            operation: OperationChange::Begin(OperationKind::Recover, OPERATION_TTL),
            ..Change::default()
        };
        let Guarded::Updated(record) = self.record_update(record, begin).await? else {
            return Ok(());
        };
        let outcome = self.holding(&record.id, self.set_up(&record)).await;
        let change = match outcome {
            // Whoever took it over decides on it.
            Err(_lost) => return Ok(()),
            Ok(Ok(change)) => {
                tracing::info!(vm_id = %record.id, "guest set up again after a boot");
                change
            }
            Ok(Err(e)) => {
                let text = format!(
                    "guest restarted and could not be set up again: {}",
                    chain(&*e)
                );
                tracing::warn!(vm_id = %record.id, error = text, "trying again later");
                Change {
                    audit: audit::set_up_failed(&record, &text),
                    error: Some(text),
                    ..Change::default()
                }
            }
        };
        self.end_set_up(&record, change).await?;
        Ok(())
    }

    async fn end_set_up(&self, record: &Environment, change: Change) -> Result<(), Error> {
        let change = Change {
            operation: OperationChange::End,
            ..change
        };
        // Stale or missing: somebody destroys it, and nothing is left to say.
        let _guarded = self.record_update(record, change).await?;
        Ok(())
    }

    /// Writes everything again and starts the guest agent. The boot is noted last, so
    /// that whatever fails is tried again in the next cycle.
    pub(crate) async fn set_up(&self, record: &Environment) -> Result<Change, Failure> {
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        let found: Option<FoundVm> = provider.find(&record.id).await?;
        let vm = found.ok_or("the vm is gone")?;
        let boot_id = vm.boot_id.ok_or("the guest is still booting")?;
        if !self.inner.store.vault().has_key() {
            tracing::warn!(
                vm_id = %record.id,
                "without TOKEN_ENCRYPTION_KEY secrets are not kept, and the guest gets none back"
            );
        }
        let secrets = self.secrets_of(&record.id).await?;
        let stored = self.request_of(&record.id).await?;
        let credentials = self.new_credentials(&record.id)?;
        self.write_files(
            record,
            provider.clone(),
            &stored,
            &secrets,
            credentials.as_ref(),
        )
        .await?;
        let start = start_request(&self.inner.settings, &stored, credentials.is_some());
        let endpoints = provider.start_agent(&record.id, &start).await?;
        let manifest = Manifest::parse(stored.manifest_text().as_bytes())?;
        services_again(&*provider, &record.id, &manifest).await?;
        Ok(Change {
            url: Some(vm.url),
            endpoints: Some(endpoints),
            error: Some(String::new()),
            guest_token: credentials.map(|made| made.token),
            boot_id: Some(boot_id),
            guest_version: vm.guest_version,
            audit: audit::set_up_again(record, secrets.keys()),
            ..Change::default()
        })
    }

    async fn write_files(
        &self,
        record: &Environment,
        provider: Arc<dyn Provider>,
        stored: &StoredRequest,
        secrets: &SecretMap,
        credentials: Option<&Credentials>,
    ) -> Result<(), Failure> {
        let manifest_bytes = stored.manifest_text().as_bytes();
        let manifest = Manifest::parse(manifest_bytes)?;
        let files = guest::profile_files(FileSources {
            manifest_bytes,
            manifest: &manifest,
            secrets,
            credentials,
            healthcheck: stored.healthcheck.as_ref(),
            desktop: stored.desktop.as_ref(),
            files: &[],
        });
        Ok(provider.upload(&record.id, &upload_request(files)).await?)
    }
}
