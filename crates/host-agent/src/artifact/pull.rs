//! The pulls of a host: which are under way, how far they are, what became of them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuse_wire_host::artifact::{default_id, is_digest, is_snapshot_id};
use fuse_wire_host::{AgentUrl, Artifact, Grant, Pull, PullRequest, PullState};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::PullError;
use super::{Artifacts, Inner};
use crate::report::chain;
use crate::snapshot::Stored;

/// Pulls under way, those that wait for their turn among them.
const MAX_RUNNING: usize = 64;
/// Pulls that have ended and are remembered.
const REMEMBERED: usize = 256;

/// What a pull is to get.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) digest: String,
    pub(super) id: String,
    /// The base image that is expected, if any is.
    pub(super) base: Option<String>,
    pub(super) peer: AgentUrl,
    pub(super) grant: Grant,
}

/// A pull, under way or ended.
#[derive(Debug)]
pub struct PullBegun {
    id: String,
    pub(super) job: Job,
    /// Bytes that have arrived.
    pub(super) done: AtomicU64,
    /// Bytes that there are; 0 while that is not known.
    pub(super) total: AtomicU64,
    outcome: watch::Sender<Option<Result<Artifact, String>>>,
    given_up: CancellationToken,
    /// It is becoming visible, which is not interrupted.
    pub(super) commits: AtomicBool,
}

impl PullBegun {
    /// How far it is.
    #[must_use]
    pub fn view(&self) -> Pull {
        let (record, error) = match &*self.outcome.borrow() {
            None => (None, None),
            Some(Ok(record)) => (Some(record.clone()), None),
            Some(Err(error)) => (None, Some(error.clone())),
        };
        let total = self.total.load(Ordering::Relaxed);
        Pull {
            pull_id: self.id.clone(),
            state: match (&record, &error) {
                (Some(_), _) => PullState::Done,
                (None, Some(_)) => PullState::Failed,
                (None, None) => PullState::Running,
            },
            bytes_done: self.done.load(Ordering::Relaxed),
            bytes_total: (total > 0).then_some(total),
            record,
            error,
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It failed.
    pub async fn ended(&self) -> Result<Artifact, PullError> {
        let mut outcome = self.outcome.subscribe();
        // The sender is a part of `self`.
        let ended = outcome.wait_for(Option::is_some).await;
        let ended = ended.ok().and_then(|ended| ended.clone());
        let ended = ended.unwrap_or_else(|| Err("the pull was lost".to_owned()));
        ended.map_err(PullError::Failed)
    }

    /// Completes when nobody wants it any more and it can still be stopped.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
        if self.commits.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    fn is_running(&self) -> bool {
        self.outcome.borrow().is_none()
    }

    /// Bytes that are still to come.
    fn left(&self) -> u64 {
        let total = self.total.load(Ordering::Relaxed);
        total.saturating_sub(self.done.load(Ordering::Relaxed))
    }
}

/// All pulls.
#[derive(Debug, Default)]
pub(super) struct Pulls(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    pulls: HashMap<String, Arc<PullBegun>>,
    /// Ids in the order in which they began.
    order: VecDeque<String>,
}

impl Pulls {
    /// Bytes that pulls other than this one are still to write.
    pub(super) fn left_of_others(&self, pull: &PullBegun) -> u64 {
        let table = self.lock();
        let others = table.pulls.values();
        others
            .filter(|other| other.id != pull.id && other.is_running())
            .map(|other| other.left())
            .sum()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Every change is a single insert or remove.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Forgets the oldest that have ended.
    fn prune(&mut self) {
        let mut ended = self
            .pulls
            .values()
            .filter(|pull| !pull.is_running())
            .count();
        let mut at = 0;
        while ended > REMEMBERED && at < self.order.len() {
            let id = &self.order[at];
            if self.pulls.get(id).is_some_and(|pull| pull.is_running()) {
                at += 1;
                continue;
            }
            self.pulls.remove(id);
            self.order.remove(at);
            ended -= 1;
        }
    }
}

impl Artifacts {
    /// Begins to fetch an artifact; joins the pull that is at it already. One that is here under the
    /// same id is not fetched again.
    ///
    /// # Errors
    /// The request is wrong, the id is something else's, or there are too many pulls.
    pub fn pull(&self, digest: &str, request: PullRequest) -> Result<Arc<PullBegun>, PullError> {
        let job = job(digest, request)?;
        let mut table = self.inner.pulls.lock();
        // Under the lock: a pull that ends has made its snapshot visible before.
        let there = self.inner.snapshots.get(&job.id);
        let running = table
            .pulls
            .values()
            .find(|pull| pull.is_running() && pull.job.id == job.id);
        let is_same = |digest: &str, base: Option<&String>| {
            let wanted = job.base.as_ref();
            digest == job.digest && (wanted.is_none() || base.is_none() || base == wanted)
        };
        let taken = || PullError::Taken { id: job.id.clone() };
        if let Some(stored) = &there {
            if !is_same(&stored.view.digest, stored.view.base_digest.as_ref()) {
                return Err(taken());
            }
        } else if let Some(running) = running {
            let is_joined = is_same(&running.job.digest, running.job.base.as_ref());
            return is_joined.then(|| Arc::clone(running)).ok_or_else(taken);
        }
        let all = table.pulls.values();
        if all.filter(|pull| pull.is_running()).count() >= MAX_RUNNING {
            return Err(PullError::Busy);
        }
        let id = format!("pull-{:032x}", rand::random::<u128>());
        let pull = Arc::new(PullBegun {
            id: id.clone(),
            job,
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            given_up: CancellationToken::new(),
            commits: AtomicBool::new(false),
            outcome: watch::Sender::new(there.map(|stored| Ok(record(&stored)))),
        });
        table.pulls.insert(id.clone(), Arc::clone(&pull));
        table.order.push_back(id);
        table.prune();
        drop(table);
        if pull.is_running() {
            let (inner, pull) = (Arc::clone(&self.inner), Arc::clone(&pull));
            self.inner
                .tasks
                .spawn(async move { inner.run(&pull).await });
        }
        Ok(pull)
    }

    /// Stops fetching what would be stored as `id`, and waits until nothing will be any more.
    pub async fn give_up(&self, id: &str) {
        let running = {
            let table = self.inner.pulls.lock();
            let mut pulls = table.pulls.values();
            pulls
                .find(|pull| pull.is_running() && pull.job.id == id)
                .cloned()
        };
        if let Some(pull) = running {
            pull.given_up.cancel();
            // That it failed is what was wanted; if not, it is there and can be deleted.
            let _ended = pull.ended().await;
        }
    }

    /// A pull of this agent's life.
    #[must_use]
    pub fn get(&self, pull_id: &str) -> Option<Arc<PullBegun>> {
        self.inner.pulls.lock().pulls.get(pull_id).cloned()
    }
}

impl Inner {
    async fn run(&self, pull: &PullBegun) {
        let (id, digest, peer) = (&pull.job.id, &pull.job.digest, &pull.job.peer);
        let outcome = match self.transfer(pull).await {
            Ok(record) => {
                let bytes = record.bytes;
                tracing::info!(snapshot_id = id, digest, %peer, bytes, "artifact pulled");
                Ok(record)
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(snapshot_id = id, digest, %peer, error, "artifact not pulled");
                Err(error)
            }
        };
        pull.outcome.send_replace(Some(outcome));
    }
}

/// Checks a request.
fn job(digest: &str, request: PullRequest) -> Result<Job, PullError> {
    let refuse = |text: &str| PullError::Request(text.to_owned());
    if !is_digest(digest) {
        return Err(refuse("digest must be 64 lower-case hex digits"));
    }
    if request.grant.expose().is_empty() {
        return Err(refuse("missing field: grant"));
    }
    let id = request.snapshot_id.filter(|id| !id.is_empty());
    let id = id.unwrap_or_else(|| default_id(digest));
    if !is_snapshot_id(&id) {
        return Err(refuse(
            "snapshot_id must be letters, digits, '.', '_' and '-', at most 128, the first a letter or digit",
        ));
    }
    let base = request.base_digest.filter(|base| !base.is_empty());
    if base.as_ref().is_some_and(|base| !is_digest(base)) {
        return Err(refuse("base_digest must be 64 lower-case hex digits"));
    }
    if request.peer_url.is_empty() {
        return Err(refuse("missing field: peer_url"));
    }
    let peer = AgentUrl::parse(&request.peer_url);
    let peer = peer.map_err(|e| PullError::Request(format!("peer_url: {e}")))?;
    Ok(Job {
        digest: digest.to_owned(),
        id,
        base,
        peer: peer.origin(),
        grant: request.grant,
    })
}

/// What callers see of a stored artifact.
pub(super) fn record(stored: &Stored) -> Artifact {
    let view = &stored.view;
    Artifact {
        snapshot_id: view.snapshot_id.clone(),
        comment: view.comment.clone(),
        created_at: view.created_at.clone(),
        origin_vm_id: view.origin_vm_id.clone(),
        digest: view.digest.clone(),
        bytes: view.size_bytes,
        source_peer: stored.source_peer.clone().unwrap_or_default(),
        base_digest: view.base_digest.clone(),
    }
}
