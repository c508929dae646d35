//! Brings a snapshot's disk to another host, where something is to start from it.
//!
//! The host that is to have it fetches it from one that does, with a grant that only the
//! control plane can mint; the bytes never come by here. The copy gets a record of its own,
//! with the same tenant, key and digest, so that it is found the next time. The record is there
//! before the bytes: what was begun and is fetched for nobody any more is deleted.

use std::time::Duration;

use fuse_model::{
    AuditEntry, AuditKind, HostId, Snapshot, SnapshotId, SnapshotKind, SnapshotState as S,
};
use fuse_redact::Redactor;
use fuse_store::{Holder, SnapshotChange, StoreError};
use fuse_wire_host::grant::MintError;
use fuse_wire_host::{Artifact, HostError, Pull, PullAnswer, PullRequest, PullState};
use sha2::{Digest as _, Sha256};

use super::{TEXT_LIMIT, drop_unrecorded};
use crate::{
    Control, Error,
    error::chain,
    inflight::Hold,
    provider::{Provider, ProviderError},
};

/// Where the record of a copy says which replica has it fetched, until it is there.
const FETCHED_BY: &str = "fetched_by";
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
        let Some(copying) = self.begin_copy(seed, host).await? else {
            return Ok(SnapshotId::new(copy_id(&seed.digest, host)));
        };
        let limit = self.inner.settings.artifact_pull_timeout;
        let fetching = Box::pin(self.copy_from_any(seed, &holders, host, &*target));
        let copied = if limit.is_zero() {
            fetching.await
        } else {
            let copied = tokio::time::timeout(limit, fetching).await;
            copied.unwrap_or(Err(CopyError::TimedOut(limit)))
        };
        match copied {
            Ok((from, artifact)) => {
                Box::pin(self.end_copy(copying, &from, &*target, &artifact)).await
            }
            Err(e) => {
                let text = Redactor::default().clean_head(&chain(&e), TEXT_LIMIT);
                Box::pin(copying.give_up()).await;
                Err(Error::Transfer(text))
            }
        }
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

    /// Writes down that `host` is to have it, before it is asked to fetch it, or joins those who
    /// did. `None`: it is there.
    async fn begin_copy(&self, seed: &Snapshot, host: &HostId) -> Result<Option<Copying>, Error> {
        let store = &self.inner.store;
        let id = SnapshotId::new(copy_id(&seed.digest, host));
        // Before the record is there, or it could be taken for one that nobody fetches.
        let hold = self.inner.held.hold(id.as_str());
        let now = store.now();
        let record = Snapshot {
            id: id.clone(),
            environment_id: None,
            task_id: String::new(),
            host_id: Some(host.clone()),
            parent_id: String::new(),
            mode: Snapshot::BUILD.to_owned(),
            state: S::Creating,
            kind: SnapshotKind::Disk,
            size_bytes: 0,
            retention_until: None,
            metadata: [(FETCHED_BY.to_owned(), store.replica_id().to_string())].into(),
            exports: Vec::new(),
            last_error: String::new(),
            created_at: now,
            updated_at: now,
            ..seed.clone()
        };
        if store.snapshot_get(&id).await?.is_none()
            && let Err(e) = self.snapshot_insert(record.clone(), Vec::new(), None).await
            && store.snapshot_get(&id).await?.is_none()
        {
            return Err(e.into());
        }
        // What was given up is begun again.
        let change = SnapshotChange::new(&[S::Error, S::Creating], S::Creating);
        if self.snapshot_change(&id, change).await?.is_some() {
            return Ok(Some(Copying {
                control: self.clone(),
                record,
                hold: Some(hold),
            }));
        }
        if store.snapshot_touch(&id).await? {
            return Ok(None);
        }
        Err(Error::Transfer(format!(
            "the copy {id} on host {host} is being deleted; try again in a moment"
        )))
    }

    /// Writes down that it is there.
    async fn end_copy(
        &self,
        copying: Copying,
        from: &Holder,
        target: &dyn Provider,
        artifact: &Artifact,
    ) -> Result<SnapshotId, Error> {
        let id = copying.record.id.clone();
        if artifact.snapshot_id != id.as_str() {
            drop_unrecorded(target, &SnapshotId::new(artifact.snapshot_id.clone())).await;
            copying.give_up().await;
            return Err(Error::Transfer(format!(
                "the agent named the copy {:?} instead of {id}: update it",
                artifact.snapshot_id
            )));
        }
        let host = copying.record.host_id.as_ref().map_or("", HostId::as_str);
        let about = [
            ("source_snapshot_id", from.snapshot.as_str()),
            ("source_host_id", from.host.as_str()),
        ];
        let whole = Snapshot {
            size_bytes: artifact.bytes,
            metadata: about
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..copying.record.clone()
        };
        let pulled = AuditEntry::new(AuditKind::ArtifactPulled, host)
            .with("snapshot_id", id.as_str())
            .with("source_snapshot_id", from.snapshot.as_str())
            .with("source_host_id", from.host.as_str())
            .with("bytes", artifact.bytes);
        let completed = self.snapshot_complete(whole, vec![pulled]).await?;
        copying.over();
        let store = &self.inner.store;
        // Who fetched the same may have been faster.
        if !completed && !store.snapshot_touch(&id).await? {
            return Err(Error::Transfer(format!(
                "the copy {id} was deleted before it was used; try again"
            )));
        }
        store.snapshot_touch(&from.snapshot).await?;
        Ok(id)
    }

    /// Deletes copies that nobody fetches any more, with what their hosts have of them.
    pub(super) async fn collect_unfinished_copies(&self) -> Result<(), StoreError> {
        let store = &self.inner.store;
        let begun = store.snapshot_list_copies_begun().await?;
        if begun.is_empty() {
            return Ok(());
        }
        let alive = store.replicas_alive().await?;
        for copy in begun {
            let by = copy.meta(FETCHED_BY);
            let is_ours = by == store.replica_id().as_str();
            let goes_on = match is_ours {
                true => self.inner.held.contains(copy.id.as_str()),
                false => alive.iter().any(|replica| replica.as_str() == by),
            };
            if !goes_on {
                self.drop_copy(&copy).await;
            }
        }
        Ok(())
    }

    /// Deletes a copy that is not whole. The host stops fetching it.
    async fn drop_copy(&self, copy: &Snapshot) {
        let change = SnapshotChange::new(&[S::Creating], S::Deleting);
        self.collect_and_log(copy, change, "unfinished").await;
        // A host that does not answer has to be asked again; until then it may be fetched anew.
        let change = SnapshotChange::new(&[S::Deleting], S::Creating);
        if let Err(e) = self.snapshot_change(&copy.id, change).await {
            tracing::warn!(snapshot_id = %copy.id, error = %chain(&e), "a copy stays deleting");
        }
    }
}

/// A copy that is being fetched for somebody here. Whoever stops waiting for it gives it up, unless
/// others wait, too.
struct Copying {
    control: Control,
    record: Snapshot,
    /// `None` when it is over.
    hold: Option<Hold>,
}

impl Copying {
    /// It is there, and recorded.
    fn over(mut self) {
        self.hold = None;
    }

    async fn give_up(mut self) {
        self.hold = None;
        if !self.is_awaited() {
            self.control.drop_copy(&self.record).await;
        }
    }

    fn is_awaited(&self) -> bool {
        self.control.inner.held.contains(self.record.id.as_str())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if self.hold.take().is_none() || self.is_awaited() {
            return;
        }
        let (control, record) = (self.control.clone(), self.record.clone());
        self.control
            .spawn(async move { control.drop_copy(&record).await });
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
