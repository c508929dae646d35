//! Brings a snapshot's disk to another host, where something is to start from it.
//!
//! The host that is to have it fetches it from one that does, with a grant that only the
//! control plane can mint; the bytes never come by here. The copy gets a record of its own,
//! with the same tenant, key and digest, so that it is found the next time.

use std::time::Duration;

use fuse_model::{
    AuditEntry, AuditKind, HostId, Snapshot, SnapshotId, SnapshotKind, SnapshotState as S,
};
use fuse_redact::Redactor;
use fuse_store::{Holder, SnapshotChange};
use fuse_wire_host::grant::MintError;
use fuse_wire_host::{Artifact, HostError, Pull, PullAnswer, PullRequest, PullState};
use sha2::{Digest as _, Sha256};

use super::{TEXT_LIMIT, drop_unrecorded};
use crate::{
    Control, Error,
    error::chain,
    provider::{Provider, ProviderError},
};

/// Pause before the first question how far a pull is; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest of these pauses.
const PAUSE: Duration = Duration::from_secs(2);
/// Questions in a row that may stay without an answer.
const SILENT: u32 = 15;
/// How often a pull is asked for again whose agent was started anew in the middle.
const ATTEMPTS: u32 = 3;

/// A copy that did not come about.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("host {host} cannot serve it")]
    Source {
        host: HostId,
        #[source]
        source: Box<Error>,
    },
    #[error("nothing opens the artifacts of host {host}")]
    Grant {
        host: HostId,
        #[source]
        source: MintError,
    },
    #[error("host {host} cannot fetch it from host {from}")]
    Target {
        host: HostId,
        from: HostId,
        #[source]
        source: ProviderError,
    },
    #[error("host {host} could not fetch it from host {from}: {text}")]
    Pull {
        host: HostId,
        from: HostId,
        text: String,
    },
    #[error("no answer for {}s (ORCH_ARTIFACT_PULL_TIMEOUT_SECONDS)", .0.as_secs())]
    TimedOut(Duration),
}

impl Control {
    /// The id under which `host` has the disk of `seed`, which is copied there first if need be.
    ///
    /// # Errors
    /// Nobody can serve it, or `host` cannot fetch it; the store fails.
    pub(crate) async fn bring_to(
        &self,
        seed: &Snapshot,
        host: &HostId,
    ) -> Result<SnapshotId, Error> {
        if seed.host_id.as_ref() == Some(host) {
            return Ok(seed.id.clone());
        }
        let mut holders = self.inner.store.snapshot_holders(seed).await?;
        if let Some(here) = holders.iter().find(|holder| holder.host == *host) {
            self.inner.store.snapshot_touch(&here.snapshot).await?;
            return Ok(here.snapshot.clone());
        }
        // Its own host first, then the others in order.
        holders.sort_by_key(|holder| seed.host_id.as_ref() != Some(&holder.host));
        let (_, target) = self.inner.providers.of(Some(host)).await?;
        let limit = self.inner.settings.artifact_pull_timeout;
        let copying = self.copy_from_any(seed, &holders, host, &*target);
        let copied = if limit.is_zero() {
            copying.await
        } else {
            let copied = tokio::time::timeout(limit, copying).await;
            copied.unwrap_or(Err(CopyError::TimedOut(limit)))
        };
        let (from, artifact) = copied
            .map_err(|e| Error::Transfer(Redactor::default().clean_head(&chain(&e), TEXT_LIMIT)))?;
        self.record_copy(seed, &from, host, &*target, &artifact)
            .await
    }

    /// Tries one holder after the other; the last failure is the answer.
    async fn copy_from_any(
        &self,
        seed: &Snapshot,
        holders: &[Holder],
        host: &HostId,
        target: &dyn Provider,
    ) -> Result<(Holder, Artifact), CopyError> {
        let mut last = CopyError::Source {
            host: seed.host_id.clone().unwrap_or_else(|| HostId::new("")),
            source: Box::new(Error::SnapshotGone(seed.id.clone())),
        };
        for holder in holders {
            // What is being read is not collected.
            let touched = self.inner.store.snapshot_touch(&holder.snapshot).await;
            let copied = match touched {
                Ok(true) => self.copy(seed, holder, host, target).await,
                Ok(false) => continue,
                Err(e) => Err(CopyError::Source {
                    host: holder.host.clone(),
                    source: Box::new(e.into()),
                }),
            };
            match copied {
                Ok(artifact) => return Ok((holder.clone(), artifact)),
                Err(e) => {
                    tracing::warn!(
                        snapshot_id = %seed.id, host_id = %host, from = %holder.host,
                        error = %chain(&e), "a copy failed"
                    );
                    last = e;
                }
            }
        }
        Err(last)
    }

    async fn copy(
        &self,
        seed: &Snapshot,
        holder: &Holder,
        host: &HostId,
        target: &dyn Provider,
    ) -> Result<Artifact, CopyError> {
        let from = &holder.host;
        let unserved = |source| CopyError::Source {
            host: from.clone(),
            source: Box::new(source),
        };
        let refused = |source| CopyError::Target {
            host: host.clone(),
            from: from.clone(),
            source,
        };
        let failed = |text: String| CopyError::Pull {
            host: host.clone(),
            from: from.clone(),
            text,
        };
        let source = self.inner.providers.of(Some(from)).await;
        let (_, source) = source.map_err(|e| unserved(e.into()))?;
        let mut lost = failed("its agent was started anew too often".to_owned());
        for _ in 0..ATTEMPTS {
            let opened = source.artifact(&seed.digest);
            let (peer_url, grant) = opened.map_err(|source| CopyError::Grant {
                host: from.clone(),
                source,
            })?;
            let request = PullRequest {
                peer_url,
                grant,
                snapshot_id: Some(copy_id(&seed.digest, host)),
                base_digest: Some(seed.base_digest.clone()).filter(|base| !base.is_empty()),
                is_async: Some(true),
            };
            tracing::info!(snapshot_id = %seed.id, host_id = %host, %from, "copying a snapshot");
            let begun = target.pull(&seed.digest, &request).await;
            let pull = match begun.map_err(refused)? {
                PullAnswer::Done(artifact) => return Ok(artifact),
                PullAnswer::Begun(pull) => pull,
            };
            match follow(target, pull).await {
                Ok(Ok(artifact)) => return Ok(artifact),
                Ok(Err(text)) => return Err(failed(text)),
                // It knows nothing of the pull any more: ask again.
                Err(e @ ProviderError::Host(HostError::NotFound { .. })) => lost = refused(e),
                Err(e) => return Err(refused(e)),
            }
        }
        Err(lost)
    }

    /// Writes down that `host` has it now.
    async fn record_copy(
        &self,
        seed: &Snapshot,
        from: &Holder,
        host: &HostId,
        target: &dyn Provider,
        artifact: &Artifact,
    ) -> Result<SnapshotId, Error> {
        let store = &self.inner.store;
        let id = SnapshotId::new(artifact.snapshot_id.clone());
        if self.is_recorded(&id).await? {
            return Ok(id);
        }
        let now = store.now();
        let about = [
            ("source_snapshot_id", from.snapshot.as_str()),
            ("source_host_id", from.host.as_str()),
        ];
        let copy = Snapshot {
            id: id.clone(),
            environment_id: None,
            task_id: String::new(),
            host_id: Some(host.clone()),
            parent_id: String::new(),
            mode: Snapshot::BUILD.to_owned(),
            state: S::Ready,
            kind: SnapshotKind::Disk,
            size_bytes: artifact.bytes,
            retention_until: None,
            metadata: about
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            exports: Vec::new(),
            last_error: String::new(),
            created_at: now,
            updated_at: now,
            ..seed.clone()
        };
        let pulled = AuditEntry::new(AuditKind::ArtifactPulled, host.as_str())
            .with("snapshot_id", id.as_str())
            .with("source_snapshot_id", from.snapshot.as_str())
            .with("source_host_id", from.host.as_str())
            .with("bytes", artifact.bytes);
        if let Err(e) = store.snapshot_insert(copy, vec![pulled], None).await {
            // Somebody else may have asked for the same copy.
            if self.is_recorded(&id).await? {
                return Ok(id);
            }
            drop_unrecorded(target, &id).await;
            return Err(e.into());
        }
        store.snapshot_touch(&from.snapshot).await?;
        Ok(id)
    }

    /// Whether there is a record of a copy, which is made usable again if it was given up.
    async fn is_recorded(&self, id: &SnapshotId) -> Result<bool, Error> {
        let store = &self.inner.store;
        let change = SnapshotChange::new(&[S::Error], S::Ready);
        store.snapshot_change(id, change).await?;
        match store.snapshot_get(id).await? {
            None => Ok(false),
            Some(_) if store.snapshot_touch(id).await? => Ok(true),
            Some(record) => Err(Error::Transfer(format!(
                "the copy {id} on its host is {}; try again in a moment",
                record.state
            ))),
        }
    }
}

/// Asks how far a pull is until it has ended. `Err` = the agent does not say.
async fn follow(
    target: &dyn Provider,
    begun: Pull,
) -> Result<Result<Artifact, String>, ProviderError> {
    let id = begun.pull_id.clone();
    let (mut pull, mut pause, mut silent) = (begun, FIRST_PAUSE, 0);
    loop {
        match (pull.state, pull.record.take()) {
            (PullState::Done, Some(artifact)) => return Ok(Ok(artifact)),
            (PullState::Done, None) => return Ok(Err("it says nothing of what it has".to_owned())),
            (PullState::Failed, _) => return Ok(Err(pull.error.unwrap_or_default())),
            (PullState::Running, _) => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE);
        match target.pulled(&id).await {
            Ok(now) => (pull, silent) = (now, 0),
            Err(ProviderError::Host(e)) if is_passing(&e) && silent < SILENT => {
                tracing::debug!(pull_id = id, error = %chain(&e), "no answer about a pull");
                silent += 1;
            }
            Err(e) => return Err(e),
        }
    }
}

/// Whether asking again may help.
fn is_passing(error: &HostError) -> bool {
    matches!(
        error,
        HostError::Unreachable { .. } | HostError::NoAnswer { .. } | HostError::Busy { .. }
    )
}

/// The id of a copy: the same for everybody who wants this artifact on this host.
fn copy_id(digest: &str, host: &HostId) -> String {
    let of_host = hex::encode(Sha256::digest(host.as_str()));
    let head = |text: &str, length| text.get(..length).unwrap_or(text).to_owned();
    format!("art-{}-{}", head(digest, 16), head(&of_host, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_one_id_per_host() {
        let digest = "0123456789abcdef".repeat(4);
        // The first four bytes of SHA-256("host-b").
        let of_host = hex::encode(&Sha256::digest("host-b")[..4]);
        let id = copy_id(&digest, &HostId::new("host-b"));
        assert_eq!(id, format!("art-0123456789abcdef-{of_host}"));
        assert_ne!(id, copy_id(&digest, &HostId::new("host-c")));
    }
}
