//! What a fake agent has and how it is steered.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use fuse_wire_host::{Capacity, CreateVmRequest, ExecResponse, FailedCreate, LogSource, Pull};
use tokio::{sync::watch, task::JoinSet};

use super::{attach::Answered, snapshots::Stored, surface::Surface};

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the call it is named after")]
pub enum Step {
    Capacity,
    Create,
    Get,
    List,
    Delete,
    Upload,
    Exec,
    StartAgent,
    Snapshot,
    SnapshotTaken,
    Snapshots,
    Restore,
    Fork,
    DeleteSnapshot,
    Attach,
    Logs,
    Failure,
    Artifact,
    Pull,
    Pulled,
}

impl Step {
    /// The name in [`super::FakeAgent::calls`].
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Create => "create",
            Self::Get => "get",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Upload => "upload",
            Self::Exec => "exec",
            Self::StartAgent => "start-agent",
            Self::Snapshot => "snapshot",
            Self::SnapshotTaken => "snapshot-taken",
            Self::Snapshots => "snapshots",
            Self::Restore => "restore",
            Self::Fork => "fork",
            Self::DeleteSnapshot => "delete-snapshot",
            Self::Attach => "attach",
            Self::Logs => "logs",
            Self::Failure => "failure",
            Self::Artifact => "artifact",
            Self::Pull => "pull",
            Self::Pulled => "pulled",
        }
    }
}

/// How a call fails.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) status: u16,
    pub(super) text: String,
}

/// Tells a VM from every other one of any agent, of its name too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made(u64);

impl Default for Made {
    fn default() -> Self {
        static VMS: AtomicU64 = AtomicU64::new(0);
        Self(VMS.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Vm {
    pub(super) made: Made,
    pub(super) owner: Option<String>,
    /// What it was made from.
    pub(super) request: CreateVmRequest,
    pub(super) files: BTreeMap<String, Vec<u8>>,
    pub(super) serves: bool,
    pub(super) stopped: bool,
    /// Boots so far, less one.
    pub(super) reboots: u32,
    /// Release of the agent in its guest; an earlier agent does not say.
    pub(super) guest_version: Option<String>,
    pub(super) surface: Option<Surface>,
}

impl Vm {
    pub(super) fn boot_id(&self) -> String {
        format!("boot-{}-{}", self.made.0, self.reboots)
    }
}

pub(super) type OnExec = Arc<dyn Fn(&[String]) -> ExecResponse + Send + Sync>;

#[derive(Default)]
pub(super) struct Inner {
    pub(super) vms: BTreeMap<String, Vm>,
    /// Generations of the contract that it states; without, those of an agent that states none.
    pub(super) speaks: Option<axum::http::HeaderValue>,
    /// Most VMs that there were at a time.
    pub(super) peak: usize,
    pub(super) snapshots: BTreeMap<String, Stored>,
    pub(super) snapshots_taken: u64,
    /// Distinguishes its snapshots from those of other agents.
    pub(super) number: u64,
    pub(super) pulls: BTreeMap<String, Pull>,
    /// New snapshots have no digest.
    pub(super) hides_digests: bool,
    pub(super) attach_queries: Vec<String>,
    /// Who is the guest that is attached to; nobody is an echo.
    pub(super) answer_attached: Option<Answered>,
    attach_ended: watch::Sender<usize>,
    /// Told after every answer.
    answered: watch::Sender<()>,
    pub(super) sessions: JoinSet<()>,
    pub(super) calls: Vec<String>,
    pub(super) failures: HashMap<Step, VecDeque<Failure>>,
    pub(super) on_exec: Option<OnExec>,
    /// Held between the output of a command that is attached and its end.
    pub(super) holds_ends: Option<watch::Receiver<bool>>,
    /// What VMs print by name: console and log of the guest agent.
    pub(super) printed: BTreeMap<(String, LogSource), watch::Sender<Vec<u8>>>,
    pub(super) failed_creates: BTreeMap<String, FailedCreate>,
    /// New VMs get a surface that can be dialled.
    pub(super) has_surfaces: bool,
    /// Starting a guest agent again does not take new credentials into force.
    pub(super) keeps_credentials: bool,
    /// Snapshots get ids of the agent's choice, whatever it is asked for.
    pub(super) chooses_snapshot_ids: bool,
    pub(super) capacity: Option<Capacity>,
    gates: HashMap<Step, (watch::Sender<usize>, watch::Receiver<bool>)>,
}

#[derive(Default)]
pub(super) struct State {
    inner: Mutex<Inner>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("vms", &self.lock().vms.keys())
            .finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts attached sessions that have ended.
    pub(super) fn answered(&self) -> watch::Sender<()> {
        self.lock().answered.clone()
    }

    pub(super) fn attach_ended(&self) -> watch::Sender<usize> {
        self.lock().attach_ended.clone()
    }

    pub(super) fn hold(&self, step: Step) -> Gate {
        let (arrived, waiting) = watch::channel(0);
        let (open, opened) = watch::channel(false);
        self.lock().gates.insert(step, (arrived, opened));
        Gate { waiting, open }
    }

    /// Notes a call, waits at its gate, and says whether it must fail.
    pub(super) async fn enter(&self, step: Step, name: &str) -> Result<(), Failure> {
        let gate = {
            let mut inner = self.lock();
            inner
                .calls
                .push(format!("{} {name}", step.as_str()).trim_end().to_owned());
            inner.gates.get(&step).map(|(arrived, opened)| {
                arrived.send_modify(|count| *count += 1);
                opened.clone()
            })
        };
        if let Some(mut opened) = gate {
            // A dropped gate is an open one.
            let _open = opened.wait_for(|open| *open).await;
        }
        match self
            .lock()
            .failures
            .get_mut(&step)
            .and_then(VecDeque::pop_front)
        {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

/// Calls that are held back.
#[derive(Debug)]
pub struct Gate {
    waiting: watch::Receiver<usize>,
    open: watch::Sender<bool>,
}

impl Gate {
    /// Waits until a call has arrived at the gate.
    pub async fn reached(&mut self) {
        // The sender lives as long as the agent.
        let _count = self.waiting.wait_for(|count| *count > 0).await;
    }

    /// Lets everything go, now and later.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}
