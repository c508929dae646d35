//! A host agent without hosts: the real wire, VMs in a map, every step steerable.
//!
//! It answers what `fc-agent` answers for create, get, list, delete, upload, exec,
//! start-agent, capacity, snapshots and artifacts. A test makes the next calls of a [`Step`] fail
//! ([`FakeAgent::fail`]), holds them until it lets them go ([`FakeAgent::hold`]), decides
//! what commands do ([`FakeAgent::on_exec`]), takes the agent off the network and brings
//! it back on the same port ([`FakeAgent::stop`], [`FakeAgent::start_again`]), and reads
//! what was asked of it.

mod artifacts;
mod attach;
mod logs;
mod routes;
mod snapshots;
mod state;
mod surface;

use std::{net::SocketAddr, sync::Arc};

use fuse_wire_host::{Capacity, CreateVmRequest, ExecResponse};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinSet,
};

pub use attach::AttachedGuest;
pub use state::{Gate, Step};

use state::{Failure, State, Vm};

/// The token that a fake agent wants.
pub const TOKEN: &str = "fake-agent-token";

/// See the module.
#[derive(Debug)]
pub struct FakeAgent {
    address: SocketAddr,
    state: Arc<State>,
    server: Option<Server>,
}

#[derive(Debug)]
struct Server {
    stop: oneshot::Sender<()>,
    task: JoinSet<()>,
}

impl FakeAgent {
    /// Starts one on a free port of the loopback.
    ///
    /// # Errors
    /// The port cannot be bound.
    #[expect(
        clippy::unused_async,
        reason = "it needs the runtime that its caller awaits it on"
    )]
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_on(std::net::TcpListener::bind("127.0.0.1:0")?)
    }

    /// Starts one on a socket of the caller's, which may be of another network namespace.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn start_on(listener: std::net::TcpListener) -> anyhow::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let state = Arc::new(State::default());
        let address = listener.local_addr()?;
        state.lock().number = u64::from(address.port());
        let server = Some(serve(listener, state.clone()));
        Ok(Self {
            address,
            state,
            server,
        })
    }

    /// Its base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Takes it off the network; its VMs stay.
    pub async fn stop(&mut self) {
        if let Some(Server { stop, mut task }) = self.server.take() {
            drop(stop);
            while task.join_next().await.is_some() {}
        }
    }

    /// Brings it back on the same port.
    ///
    /// # Errors
    /// The port was taken meanwhile.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        self.server = Some(serve(listener, self.state.clone()));
        Ok(())
    }

    /// The next `times` calls of `step` fail with this status and text.
    pub fn fail(&self, step: Step, times: usize, status: u16, text: &str) {
        let failure = Failure {
            status,
            text: text.to_owned(),
        };
        self.state
            .lock()
            .failures
            .entry(step)
            .or_default()
            .extend(vec![failure; times]);
    }

    /// Every call works again from now on.
    pub fn heal(&self) {
        self.state.lock().failures.clear();
    }

    /// Holds calls of `step` until the gate is opened or dropped.
    #[must_use]
    pub fn hold(&self, step: Step) -> Gate {
        self.state.hold(step)
    }

    /// Decides what commands answer; without it every command succeeds silently.
    pub fn on_exec(&self, answer: impl Fn(&[String]) -> ExecResponse + Send + Sync + 'static) {
        self.state.lock().on_exec = Some(Arc::new(answer));
    }

    /// Gives VMs that are made from now on a public surface that can be dialled.
    pub fn serve_surfaces(&self) {
        self.state.lock().has_surfaces = true;
    }

    /// Makes guest agents stay on the credentials that they were started with first.
    pub fn keep_credentials(&self) {
        self.state.lock().keeps_credentials = true;
    }

    /// Makes it an agent that knows nothing of ids for snapshots that others choose.
    pub fn chooses_snapshot_ids(&self) {
        self.state.lock().chooses_snapshot_ids = true;
    }

    /// Makes it an agent of other generations of the contract.
    pub fn speaks(&self, generations: &'static str) {
        let stated = axum::http::HeaderValue::from_static(generations);
        self.state.lock().speaks = Some(stated);
    }

    /// Says that the host has this instead of the usual.
    pub fn has(&self, capacity: Capacity) {
        self.state.lock().capacity = Some(capacity);
    }

    /// Says that the host is of this architecture, and otherwise the usual.
    pub fn has_arch(&self, arch: &str) {
        let usual = routes::usual();
        self.has(Capacity {
            arch: arch.to_owned(),
            ..usual
        });
    }

    /// What a VM was made from.
    #[must_use]
    pub fn request(&self, name: &str) -> Option<CreateVmRequest> {
        Some(self.state.lock().vms.get(name)?.request.clone())
    }

    /// Puts a VM there that nobody asked for.
    pub fn add_vm(&self, name: &str, owner: Option<&str>) {
        let vm = Vm {
            owner: owner.map(str::to_owned),
            ..Vm::default()
        };
        self.state.lock().vms.insert(name.to_owned(), vm);
    }

    /// Loses a VM, as a host does whose disk died.
    pub fn lose_vm(&self, name: &str) {
        self.state.lock().vms.remove(name);
    }

    /// Ends the VMM of a VM, as a guest does that powers off.
    pub fn end_vm(&self, name: &str) {
        if let Some(vm) = self.state.lock().vms.get_mut(name) {
            vm.stopped = true;
        }
    }

    /// Boots a VM again: what was in memory is gone, its `/fuse` and its guest agent.
    pub fn reboot(&self, name: &str) {
        if let Some(vm) = self.state.lock().vms.get_mut(name) {
            vm.reboots += 1;
            vm.serves = false;
            vm.files.retain(|path, _| !path.starts_with("/fuse/"));
        }
    }

    /// Lets a VM be listed with the release of its guest's agent, as if somebody had just noted it.
    pub fn note_guest(&self, name: &str, version: &str) {
        if let Some(vm) = self.state.lock().vms.get_mut(name) {
            vm.guest_version = Some(version.to_owned());
        }
    }

    /// Names of the VMs that exist, sorted.
    #[must_use]
    pub fn vms(&self) -> Vec<String> {
        self.state.lock().vms.keys().cloned().collect()
    }

    /// The most VMs that there ever were at a time.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.state.lock().peak
    }

    /// The owner tag of a VM.
    #[must_use]
    pub fn owner(&self, name: &str) -> Option<String> {
        self.state.lock().vms.get(name)?.owner.clone()
    }

    /// Starts the guest agent of a VM, as a call does whose answer nobody waits for.
    pub fn serve(&self, name: &str) {
        if let Some(vm) = self.state.lock().vms.get_mut(name) {
            vm.serves = true;
        }
    }

    /// Whether the guest agent of a VM was started.
    #[must_use]
    pub fn serves(&self, name: &str) -> bool {
        self.state.lock().vms.get(name).is_some_and(|vm| vm.serves)
    }

    /// Ids of the snapshots that exist, sorted.
    #[must_use]
    pub fn snapshots(&self) -> Vec<String> {
        self.state.lock().snapshots.keys().cloned().collect()
    }

    /// Takes snapshots from now on without saying their digest.
    pub fn hide_digests(&self) {
        self.state.lock().hides_digests = true;
    }

    /// Forgets the pulls that are under way or ended, as an agent does that is started anew.
    pub fn forget_pulls(&self) {
        self.state.lock().pulls.clear();
    }

    /// The queries of the attach calls so far.
    #[must_use]
    pub fn attach_queries(&self) -> Vec<String> {
        self.state.lock().attach_queries.clone()
    }

    /// From now on whoever has the result is the guest that commands are attached to.
    #[must_use]
    pub fn answer_attached(&self) -> mpsc::UnboundedReceiver<AttachedGuest> {
        let (answered, guests) = mpsc::unbounded_channel();
        self.state.lock().answer_attached = Some(answered);
        guests
    }

    /// Waits until `holds`, which is looked at again after each call that was answered.
    pub async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let mut answered = self.state.answered().subscribe();
        while !holds(self) {
            // The sender lives as long as the agent.
            let _told = answered.changed().await;
        }
    }

    /// Waits until `count` attached sessions have ended.
    pub async fn attach_ended(&self, count: usize) {
        let mut ended = self.state.attach_ended().subscribe();
        // The sender lives as long as the agent.
        let _count = ended.wait_for(|ended| *ended >= count).await;
    }

    /// Loses a snapshot, as a host does whose disk died.
    pub fn lose_snapshot(&self, id: &str) {
        self.state.lock().snapshots.remove(id);
    }

    /// Writes a file in a guest.
    pub fn write(&self, name: &str, path: &str, content: &[u8]) {
        if let Some(vm) = self.state.lock().vms.get_mut(name) {
            vm.files.insert(path.to_owned(), content.to_vec());
        }
    }

    /// The content of a file in a guest.
    #[must_use]
    pub fn file(&self, name: &str, path: &str) -> Option<Vec<u8>> {
        self.state.lock().vms.get(name)?.files.get(path).cloned()
    }

    /// Every call so far, as `step name`, in the order of arrival.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    /// How often `step` was called for `name`.
    #[must_use]
    pub fn count(&self, step: Step, name: &str) -> usize {
        let call = format!("{} {name}", step.as_str());
        self.state
            .lock()
            .calls
            .iter()
            .filter(|made| **made == call)
            .count()
    }
}

/// The answer of a command that succeeds and prints `text`.
#[must_use]
pub fn printing(text: &str) -> ExecResponse {
    ExecResponse {
        stdout: text.as_bytes().to_vec(),
        ..ExecResponse::default()
    }
}

fn serve(listener: TcpListener, state: Arc<State>) -> Server {
    let (stop, stopped) = oneshot::channel::<()>();
    let mut task = JoinSet::new();
    task.spawn(async move {
        let serving = axum::serve(listener, routes::router(state));
        tokio::select! {
            _ended = serving.into_future() => {}
            // The sender is only ever dropped.
            _stopped = stopped => {}
        }
    });
    Server { stop, task }
}
