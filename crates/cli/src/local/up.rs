//! Starting the stack. Repeatable: what runs and is current is left alone.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use fuse_client::{BaseUrl, Client, Token};
use fuse_wire_api::{Capacity, Host, RegisterHost};
use sha2::{Digest as _, Sha256};

use super::daemon::Daemon;
use super::error::file_error;
use super::layout::LOCK;
use super::record::Stack;
use super::root::{self, Step};
use super::tokens::Tokens;
use super::vmm::{self, Choice};
use super::{Error, Layout, NAME, Ports, agent, guests, image, orchestrator, ports, tools};
use crate::app::options;
use crate::io::Io;

/// How long a program may take until it answers.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Pause between two questions whether it does.
const ASK_EVERY: Duration = Duration::from_millis(40);
/// VMs that the host takes at a time.
const MAX_VMS: i32 = 8;
/// Label of a host whose guests are emulated.
const EMULATED: &str = "fuse.emulated";

/// A running stack.
#[derive(Debug)]
pub(crate) struct Running {
    /// Where the orchestrator is.
    pub(crate) url: String,
    /// Where the host agent is.
    pub(crate) agent_url: String,
    /// The orchestrator's token.
    pub(crate) token: Token,
    /// What runs the guests.
    pub(crate) choice: Choice,
    /// Nothing had to be started.
    pub(crate) was_up: bool,
}

/// Held while a command works on a stack.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    /// When another command has it.
    pub(super) fn take(layout: &Layout) -> Result<Self, Error> {
        let path = layout.file(LOCK);
        let open = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path);
        let file = open.map_err(file_error("open", &path))?;
        file.try_lock().map_err(|_| Error::Busy {
            dir: layout.root.clone(),
        })?;
        Ok(Self { _file: file })
    }
}

/// Programs that this run started; they are stopped again unless the run gets to its end.
struct Started<'a> {
    layout: &'a Layout,
    orchestrator: bool,
    agent: bool,
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        // The error that is on its way out matters more than one of these.
        if self.orchestrator {
            orchestrator::stop(self.layout).ok();
        }
        if self.agent {
            root::run(self.layout, Step::AgentStop).ok();
            // It may have booted VMs of an earlier run by now.
            root::run(self.layout, Step::VmsStop).ok();
        }
    }
}

/// Starts what does not run, registers the host, and says what there is.
///
/// # Errors
/// The first thing that is wrong; what this call started is stopped again.
pub(crate) async fn up(layout: &Layout, wanted: Ports, io: Io) -> Result<Running, Error> {
    let before = match check(layout, wanted, io) {
        Ok(before) => before,
        Err(error) => {
            // What is wrong may be the work of another command that has just begun.
            if layout.file(LOCK).exists() {
                Lock::take(layout)?;
            }
            return Err(error);
        }
    };
    layout.create()?;
    let _lock = Lock::take(layout)?;
    let tokens = Tokens::ensure(layout)?;
    let choice = vmm::choose(layout, io)?;
    tools::check_tools(choice.emulated)?;

    let (orchestrator, agent) = (orchestrator::daemon(layout), agent::daemon(layout));
    let mut stack = record(layout, wanted, &choice);
    let mut started = Started {
        layout,
        orchestrator: false,
        agent: false,
    };
    stop_outdated(layout, before.as_ref(), &stack, io)?;
    stack.save(layout)?;
    if orchestrator.running().is_none() {
        started.orchestrator = true;
        orchestrator::start(layout, wanted, &tokens)?;
    }
    if agent.running().is_none() {
        started.agent = true;
        root::run(layout, Step::AgentStart)?;
    }
    let client = local_client(wanted, tokens.orchestrator.clone())?;
    ready(&orchestrator, &client, "orchestrator").await?;
    let agent_client = client_at(wanted.agent, tokens.agent.clone())?;
    ready(&agent, &agent_client, agent::PROGRAM).await?;

    register(&client, layout, &mut stack, &choice, &tokens).await?;
    if started.agent {
        guests::wait_until_back(&client, io).await?;
    }
    let was_up = !started.orchestrator && !started.agent;
    (started.orchestrator, started.agent) = (false, false);
    Ok(Running {
        url: client.base_url().to_string(),
        agent_url: agent_client.base_url().to_string(),
        token: tokens.orchestrator,
        choice,
        was_up,
    })
}

/// Refuses what can be refused before anything is made or started, and returns the record of the
/// stack if it runs.
fn check(layout: &Layout, wanted: Ports, io: Io) -> Result<Option<Stack>, Error> {
    tools::check_programs(layout)?;
    let orchestrator = orchestrator::daemon(layout).running().is_some();
    let agent = agent::daemon(layout).running().is_some();
    let before = Stack::load(layout).filter(|_| orchestrator || agent);
    if let Some(stack) = before.as_ref().filter(|stack| stack.ports() != wanted) {
        return Err(Error::OtherPorts {
            orchestrator: stack.orchestrator_port,
            agent: stack.agent_port,
        });
    }
    if !orchestrator {
        ports::require_free(wanted.orchestrator, "orchestrator", "--orchestrator-port")?;
    }
    if !agent {
        ports::require_free(wanted.agent, "host agent", "--agent-port")?;
    }
    tools::check_tools(false)?;
    root::require(io)?;
    image::ensure(layout, io)?;
    Ok(before)
}

/// The record of the stack as it is going to be.
fn record(layout: &Layout, ports: Ports, choice: &Choice) -> Stack {
    let registered = Stack::load(layout)
        .map(|stack| stack.registered_token)
        .unwrap_or_default();
    Stack {
        orchestrator_port: ports.orchestrator,
        agent_port: ports.agent,
        vmm: choice.name().to_owned(),
        vmm_program: choice.program.clone(),
        reason: choice.reason.clone(),
        orchestrator_build: vmm::identity(&layout.program(orchestrator::PROGRAM)),
        agent_build: vmm::identity(&layout.program(agent::PROGRAM)),
        registered_token: registered,
    }
}

/// Stops programs that were built anew since they were started, or an agent that is to drive
/// another VMM. VMs go on while their agent is replaced.
fn stop_outdated(
    layout: &Layout,
    before: Option<&Stack>,
    now: &Stack,
    io: Io,
) -> Result<(), Error> {
    let Some(before) = before else { return Ok(()) };
    if before.orchestrator_build != now.orchestrator_build
        && orchestrator::daemon(layout).running().is_some()
    {
        io.note("restarting the orchestrator: its program has changed");
        orchestrator::stop(layout)?;
    }
    let agent_changed =
        before.agent_build != now.agent_build || before.vmm_program != now.vmm_program;
    if agent_changed && agent::daemon(layout).running().is_some() {
        io.note("restarting the host agent: its program has changed; VMs go on");
        root::run(layout, Step::AgentStop)?;
    }
    Ok(())
}

/// A client of the stack's orchestrator.
///
/// # Errors
/// When it cannot be set up.
pub(super) fn local_client(ports: Ports, token: Token) -> Result<Client, Error> {
    client_at(ports.orchestrator, token)
}

fn client_at(port: u16, token: Token) -> Result<Client, Error> {
    let url = format!("http://127.0.0.1:{port}");
    let base_url =
        BaseUrl::parse(&url).map_err(|error| fuse_client::Error::Setup(error.to_string()))?;
    let mut options = options(base_url, Some(token));
    options.retry_refused = false;
    Ok(Client::new(options)?)
}

/// Waits until a program answers and names itself; ends early when it dies.
async fn ready(daemon: &Daemon, client: &Client, service: &'static str) -> Result<(), Error> {
    let started = Instant::now();
    loop {
        if let Ok(identity) = client.identity().await {
            let server = identity.server.as_deref().unwrap_or_default();
            // The agent has no such route; its header says who it is.
            let known = identity.is_orchestrator() || server.starts_with(service);
            // Of another stack: it does not take our token.
            if !known || identity.status == 401 {
                let url = client.base_url().to_string();
                return Err(Error::Foreign { name: service, url });
            }
            return Ok(());
        }
        let died = match daemon.running() {
            Some(process) => process.has_ended(ASK_EVERY),
            None => true,
        };
        if died {
            return Err(Error::Died {
                name: daemon.name,
                log: daemon.log.clone(),
                tail: daemon.tail(),
            });
        }
        if started.elapsed() > READY_WITHIN {
            return Err(Error::NotReady {
                name: daemon.name,
                url: client.base_url().to_string(),
                seconds: READY_WITHIN.as_secs(),
                log: daemon.log.clone(),
                tail: daemon.tail(),
            });
        }
    }
}

/// Registers the host, unless it is registered as it should be.
async fn register(
    client: &Client,
    layout: &Layout,
    stack: &mut Stack,
    choice: &Choice,
    tokens: &Tokens,
) -> Result<(), Error> {
    let url = format!("http://127.0.0.1:{}", stack.agent_port);
    let token = hex::encode(Sha256::digest(tokens.agent.reveal()));
    let emulated = |host: &Host| {
        host.labels
            .get(EMULATED)
            .is_some_and(|value| value == "true")
    };
    let current = match client.host(NAME).await {
        Ok(host) => {
            host.url == url && emulated(&host) == choice.emulated && stack.registered_token == token
        }
        Err(error) if error.is_not_found() => false,
        Err(error) => return Err(error.into()),
    };
    if current {
        return Ok(());
    }
    let mut labels = BTreeMap::new();
    if choice.emulated {
        labels.insert(EMULATED.to_owned(), "true".to_owned());
    }
    let request = RegisterHost {
        id: NAME.to_owned(),
        url,
        token: tokens.agent.reveal().to_owned(),
        backend: "firecracker".to_owned(),
        labels,
        capacity: Capacity {
            vm_count: MAX_VMS,
            ..Capacity::default()
        },
        ..RegisterHost::default()
    };
    client.register_host(&request).await?;
    stack.registered_token = token;
    stack.save(layout)
}
