//! One transfer, from the first request to the rename.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fuse_wire_host::{Artifact, ArtifactStream, FetchError, Grant, Snapshot};
use subtle::ConstantTimeEq as _;

use super::Inner;
use super::error::TransferError;
use super::pull::{PullBegun, record};
use super::staging::{Form, Staging, Written};
use crate::disk::{space, sparse_form};
use crate::fail_point::place;
use crate::file_error::failed;
use crate::snapshot::{Snapshots, Stored};

/// What stays free beside an artifact.
const KEPT: u64 = 64 << 20;
/// Pauses before a transfer that was cut goes on; one that is cut as often without a byte in between
/// is given up.
const PAUSES: [Duration; 5] = if cfg!(test) {
    [Duration::from_millis(1); 5]
} else {
    [
        Duration::from_millis(200),
        Duration::from_secs(1),
        Duration::from_secs(2),
        Duration::from_secs(4),
        Duration::from_secs(8),
    ]
};

/// One blob of a peer.
struct Blob<'a> {
    form: Form,
    digest: &'a str,
    grant: &'a Grant,
}

impl Inner {
    /// Fetches what `pull` is for, when it is its turn.
    pub(super) async fn transfer(&self, pull: &PullBegun) -> Result<Artifact, TransferError> {
        let limit = self.settings.transfer_limit;
        let work = async {
            let turn = self.fetching.acquire().await;
            let _turn = turn.map_err(|_| TransferError::ShuttingDown)?;
            let fetched = tokio::time::timeout(limit, self.fetch(pull)).await;
            fetched.unwrap_or(Err(TransferError::TooLong { limit }))
        };
        tokio::select! {
            done = work => done,
            () = self.shutdown.cancelled() => Err(TransferError::ShuttingDown),
            () = pull.given_up() => Err(TransferError::GivenUp),
        }
    }

    async fn fetch(&self, pull: &PullBegun) -> Result<Artifact, TransferError> {
        let job = &pull.job;
        let disk = Blob {
            form: Form::Disk,
            digest: &job.digest,
            grant: &job.grant,
        };
        let first = self.open(pull, &disk, 0).await?;
        let total = first.total;
        self.check_size(Form::Disk, total)?;
        let (base, grant) = first.base.clone().ok_or(TransferError::NoBase)?;
        if let Some(wanted) = job.base.as_ref().filter(|wanted| **wanted != base) {
            let (offered, wanted) = (base, wanted.clone());
            return Err(TransferError::OtherBase { offered, wanted });
        }
        pull.total.store(total, Ordering::Relaxed);
        super::make(&self.staging)?;
        self.check_room(pull, &self.staging, total)?;
        let first = if self.has_image(&base).await? {
            Some(first)
        } else {
            // Its peer would wait for nobody: it is opened again afterwards.
            drop(first);
            let image = Blob {
                form: Form::Image,
                digest: &base,
                grant: &grant,
            };
            self.fetch_image(pull, &image).await?;
            None
        };
        let written = self
            .receive(pull, &disk, first, &self.staging, total)
            .await?;
        pull.commits.store(true, Ordering::Relaxed);
        self.commit(pull, written, base, total).await
    }

    async fn fetch_image(&self, pull: &PullBegun, image: &Blob<'_>) -> Result<(), TransferError> {
        let _one = self.fetching_image.lock().await;
        if self.has_image(image.digest).await? {
            return Ok(());
        }
        let dir = self.images.store();
        let first = self.open(pull, image, 0).await?;
        let total = first.total;
        self.check_size(Form::Image, total)?;
        pull.total.fetch_add(total, Ordering::Relaxed);
        self.check_room(pull, dir, pull.total.load(Ordering::Relaxed))?;
        let written = self.receive(pull, image, Some(first), dir, total).await?;
        let (images, digest) = (Arc::clone(&self.images), image.digest.to_owned());
        let adopt = move || images.adopt(&written.file.0, &digest);
        let adopted = tokio::task::spawn_blocking(adopt).await;
        place("pull: image there");
        Ok(adopted.map_err(|_| TransferError::Lost)??)
    }

    async fn has_image(&self, digest: &str) -> Result<bool, TransferError> {
        let (images, digest) = (Arc::clone(&self.images), digest.to_owned());
        let looking = tokio::task::spawn_blocking(move || images.has(&digest));
        looking.await.map_err(|_| TransferError::Lost)
    }

    async fn open(
        &self,
        pull: &PullBegun,
        blob: &Blob<'_>,
        from: u64,
    ) -> Result<ArtifactStream, TransferError> {
        let opened = self.request(pull, blob, from).await;
        opened.map_err(|source| TransferError::Fetch {
            what: blob.form.what(),
            source,
        })
    }

    async fn request(
        &self,
        pull: &PullBegun,
        blob: &Blob<'_>,
        from: u64,
    ) -> Result<ArtifactStream, FetchError> {
        let (peer, limit) = (&pull.job.peer, self.settings.io_limit);
        let transport = &self.transport;
        transport
            .fetch_artifact(peer, blob.digest, blob.grant, from, limit)
            .await
    }

    /// Writes a blob below `dir`, goes on after cuts, and checks its digest.
    async fn receive(
        &self,
        pull: &PullBegun,
        blob: &Blob<'_>,
        first: Option<ArtifactStream>,
        dir: &Path,
        total: u64,
    ) -> Result<Written, TransferError> {
        let mut staging = Staging::begin(dir, blob.form, total);
        place("pull: begun");
        if let Err(error) = self.fill(pull, blob, first, &mut staging, total).await {
            staging.discard().await;
            return Err(error);
        }
        place("pull: received");
        let written = staging.finish().await?;
        place("pull: written");
        if bool::from(written.digest.as_bytes().ct_eq(blob.digest.as_bytes())) {
            return Ok(written);
        }
        let (what, got) = (blob.form.what(), written.digest.clone());
        Err(TransferError::Digest { what, got })
    }

    async fn fill(
        &self,
        pull: &PullBegun,
        blob: &Blob<'_>,
        first: Option<ArtifactStream>,
        staging: &mut Staging,
        total: u64,
    ) -> Result<(), TransferError> {
        let what = blob.form.what();
        let mut stream = first;
        let mut tries = 0;
        while staging.received < total {
            let before = staging.received;
            let opened = match stream.take() {
                Some(stream) => Ok(stream),
                None => self.request(pull, blob, before).await,
            };
            let cut = match opened {
                Ok(stream) if stream.total != total => {
                    let (peer, what) = (pull.job.peer.clone(), "an artifact of another length");
                    Some(FetchError::Malformed { peer, what })
                }
                Ok(stream) => drain(pull, stream, staging, total).await?,
                Err(error) => Some(error),
            };
            if staging.received >= total {
                break;
            }
            match cut {
                Some(source) if !source.is_retryable() => {
                    return Err(TransferError::Fetch { what, source });
                }
                cut => {
                    tries = if staging.received > before { 0 } else { tries };
                    let received = staging.received;
                    let Some(pause) = PAUSES.get(tries) else {
                        return Err(TransferError::Cut {
                            what,
                            received,
                            total,
                            tries,
                            source: cut,
                        });
                    };
                    tries += 1;
                    tracing::info!(what, received, total, "a transfer was cut and goes on");
                    tokio::time::sleep(*pause).await;
                }
            }
        }
        Ok(())
    }

    /// Makes the disk visible as a snapshot of nobody.
    async fn commit(
        &self,
        pull: &PullBegun,
        written: Written,
        base: String,
        total: u64,
    ) -> Result<Artifact, TransferError> {
        let peer = pull.job.peer.to_string();
        let stored = Stored {
            view: Snapshot {
                digest: pull.job.digest.clone(),
                comment: format!("pulled from {peer}"),
                base_digest: Some(base),
                ..Snapshot::default()
            },
            // Disks are whole GiB.
            storage_gb: u32::try_from(written.length.div_ceil(1 << 30).max(1)).unwrap_or(u32::MAX),
            index: 0,
            boot_id: None,
            guest_version: None,
            blocks: Some(sparse_form::blocks(total)),
            source_peer: Some(peer),
        };
        let (snapshots, id) = (Arc::clone(&self.snapshots), pull.job.id.clone());
        let work = move || put(&snapshots, id, &written, stored);
        let put = tokio::task::spawn_blocking(work).await;
        put.map_err(|_| TransferError::Lost)?
    }

    fn check_size(&self, form: Form, bytes: u64) -> Result<(), TransferError> {
        let max = self.settings.max_bytes;
        if bytes <= max {
            return Ok(());
        }
        let what = form.what();
        Err(TransferError::TooLarge { what, bytes, max })
    }

    /// Nothing is begun that is known not to fit, what other pulls are still to write included.
    fn check_room(&self, pull: &PullBegun, dir: &Path, bytes: u64) -> Result<(), TransferError> {
        let free = space::free_bytes(dir)?;
        let needed = bytes.saturating_add(self.pulls.left_of_others(pull));
        let missing = needed.saturating_add(KEPT).saturating_sub(free);
        if missing == 0 {
            return Ok(());
        }
        Err(TransferError::NoRoom {
            dir: dir.to_owned(),
            needed_mib: needed.div_ceil(1 << 20),
            free_mib: free >> 20,
            kept_mib: KEPT >> 20,
            missing_mib: missing.div_ceil(1 << 20),
        })
    }
}

/// Writes what comes until it ends or breaks off. The error is what broke it off.
async fn drain(
    pull: &PullBegun,
    mut stream: ArtifactStream,
    staging: &mut Staging,
    total: u64,
) -> Result<Option<FetchError>, TransferError> {
    while staging.received < total {
        let bytes = match stream.chunk().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(error)),
        };
        let room = usize::try_from(total - staging.received).unwrap_or(usize::MAX);
        if bytes.len() > room {
            let peer = pull.job.peer.clone();
            let what = "more bytes than it declared";
            return Ok(Some(FetchError::Malformed { peer, what }));
        }
        let length = bytes.len() as u64;
        staging.push(bytes).await?;
        pull.done.fetch_add(length, Ordering::Relaxed);
    }
    Ok(None)
}

fn put(
    snapshots: &Snapshots,
    id: String,
    written: &Written,
    stored: Stored,
) -> Result<Artifact, TransferError> {
    let staged = snapshots.stage_as(id)?;
    let overlay = staged.files().overlay();
    fs::rename(&written.file.0, &overlay).map_err(failed("create", &overlay))?;
    place("pull: moved");
    let mut stored = stored;
    stored.view = snapshots.commit(&staged, stored.clone())?;
    Ok(record(&stored))
}
