//! Gives the guest agent of a running environment new credentials.
//!
//! ```text
//! read the old set ─> upload the new one ─> start the guest agent ─> ask it with the new token ─> store it
//!                        │ any of these fails
//!                        ▼
//!                     upload the old set, start the guest agent
//! ```
//! Until the new token is stored the old one is what the control plane uses, so whatever
//! fails on the way leaves a guest that can be reached. An interrupted rotation is done
//! anew by recovery.

use std::time::Duration;

use fuse_model::{AuditEntry, AuditKind, Environment, EnvironmentId, OperationKind, Redacted};
use fuse_store::Change;
use fuse_wire_host::FileUpload;
use futures_util::future::try_join_all;

use crate::{
    Control, Error,
    create::start_request,
    error::chain,
    exec::Command,
    guest::{self, Credentials, Verdict},
    provider::{Provider, upload_request},
};

/// Bound of reading one file back.
const READ_LIMIT: Duration = Duration::from_secs(10);

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Control {
    /// Rotates the credentials of a running environment. The new ones are in force when
    /// this returns.
    ///
    /// # Errors
    /// It does not exist, does not run, there is no key to store a token under, somebody
    /// is at work on it, or a step failed: then the old ones are in force again.
    pub async fn environment_rotate_token(&self, id: &EnvironmentId) -> Result<(), Error> {
        let control = self.clone();
        let id = id.clone();
        self.detached(async move {
            let record = control.environment_get(&id).await?;
            let refusal = |vm, state| Error::RotateNotRunning { vm, state };
            control.check_free(&record, refusal)?;
            if !control.inner.store.vault().has_key() {
                return Err(Error::RotateNeedsKey);
            }
            let record = control
                .begin_operation(&id, OperationKind::Rotate, refusal)
                .await?;
            control.rotate(&record).await
        })
        .await
    }

    /// Rotates the credentials of an environment whose operation this process holds, and
    /// gives the operation back.
    pub(crate) async fn rotate(&self, record: &Environment) -> Result<(), Error> {
        let outcome = self.holding(&record.id, self.rotate_in_guest(record)).await;
        let change = match outcome {
            Ok(Ok(token)) => Change {
                guest_token: Some(token),
                audit: vec![AuditEntry::new(
                    AuditKind::VmTokenRotated,
                    record.id.as_str(),
                )],
                ..Change::default()
            },
            Ok(Err(e)) => {
                let text = format!("token rotation: {}", chain(&*e));
                tracing::warn!(vm_id = %record.id, error = text, "credentials stay as they were");
                self.end_operation(record, Change::default()).await?;
                return Err(Error::Failed(text));
            }
            Err(_lost) => return Err(Error::TakenOver(record.id.clone())),
        };
        match self.end_operation(record, change).await? {
            Some(record) => {
                tracing::info!(vm_id = %record.id, "guest credentials rotated");
                Ok(())
            }
            None => Err(Error::TakenOver(record.id.clone())),
        }
    }

    /// All steps but the last; whatever fails is undone.
    async fn rotate_in_guest(&self, record: &Environment) -> Result<Redacted<String>, Failure> {
        let (_, provider) = self.inner.providers.of(record.host_id.as_ref()).await?;
        let credentials = Credentials::mint(record.id.as_str())?;
        if !provider.has_guest() {
            return Ok(credentials.token);
        }
        let old = read_back(&*provider, &record.id).await?;
        let new = guest::credential_files(&credentials).to_vec();
        let outcome = async {
            self.put_in_force(&*provider, record, new).await?;
            match guest::ask_surface(&record.url, &credentials).await {
                // Without a way from here to the guest the agent's word has to do.
                Verdict::Accepted | Verdict::Unreachable => Ok(()),
                Verdict::Refused => Err(Failure::from("the guest agent refuses the new token")),
                Verdict::OtherCertificate => Err(Failure::from(
                    "the guest agent still shows another certificate",
                )),
            }
        };
        if let Err(e) = outcome.await {
            if let Err(undo) = self.put_in_force(&*provider, record, old).await {
                tracing::error!(
                    vm_id = %record.id, error = %chain(&*undo),
                    "cannot put the old guest credentials back"
                );
            }
            return Err(e);
        }
        Ok(credentials.token)
    }

    /// Writes a set of credentials and starts the guest agent on them. Published ports
    /// stay as they are.
    async fn put_in_force(
        &self,
        provider: &dyn Provider,
        record: &Environment,
        files: Vec<FileUpload>,
    ) -> Result<(), Failure> {
        provider.upload(&record.id, &upload_request(files)).await?;
        self.start_agent_again(provider, &record.id, true).await?;
        Ok(())
    }

    /// Starts the guest agent on what is in the guest. Published ports stay as they are.
    pub(crate) async fn start_agent_again(
        &self,
        provider: &dyn Provider,
        id: &EnvironmentId,
        has_token: bool,
    ) -> Result<(), Error> {
        let stored = self.request_of(id).await?;
        let mut start = start_request(&self.inner.settings, &stored, has_token);
        start.expose.clear();
        let started = provider.start_agent(id, &start).await;
        started.map(drop).map_err(|source| Error::Provider {
            operation: "start the guest agent",
            source,
        })
    }
}

/// The credential files as they are in the guest.
async fn read_back(
    provider: &dyn Provider,
    vm: &EnvironmentId,
) -> Result<Vec<FileUpload>, Failure> {
    let reads = guest::CREDENTIAL_PATHS.map(|path| async move {
        let argv = ["cat", path].map(str::to_owned).to_vec();
        let command = Command {
            argv,
            timeout: READ_LIMIT,
        };
        let answer = provider.exec(vm, &command.request()).await?;
        if answer.exit_code != 0 {
            return Err(Failure::from(format!(
                "cannot read {path} in the guest: {}",
                String::from_utf8_lossy(&answer.stderr).trim()
            )));
        }
        Ok(FileUpload {
            path: path.to_owned(),
            content: answer.stdout,
            mode: None,
        })
    });
    try_join_all(reads).await
}
