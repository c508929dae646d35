//! Help for this crate's own tests: a network namespace to work in, and agents on a fake VMM.

use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroup::Cgroups;
use crate::config::{Backend, Config, FIRECRACKER, PublicHost};
use crate::http::{App, server};
use crate::registry::{HostParts, Registry};
use crate::tools;
use crate::vmm::fake::FakeVmm;

/// Runs `test` with a runtime of its own on a thread in a fresh network namespace, so that devices
/// and packet rules never touch those of the machine. Says SKIP and why when that is not possible.
pub(crate) fn in_netns<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        return skip("needs root for a network namespace");
    }
    for tool in ["nft", "mkfs.ext4", "ip"] {
        if tools::find(tool).is_none() {
            return skip(&format!("{tool} is not installed"));
        }
    }
    // Namespaces belong to threads. Whatever this one starts, blocking threads of its runtime and
    // child processes included, is born in the same namespace.
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        run("ip", &["link", "set", "lo", "up"]);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Says that the current test cannot run here, past the test harness's capture.
pub(crate) fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    writeln!(
        std::io::stderr().lock(),
        "SKIP host-agent::{test}: {reason}"
    )
    .unwrap();
}

/// Runs a program of the host and gives back what it printed.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let done = std::process::Command::new(tools::find(program).unwrap())
        .args(args)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

/// The directory of a host; removed with it, unless it is somebody else's.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    own: Option<tempfile::TempDir>,
}

impl Root {
    pub(crate) fn path(&self) -> &std::path::Path {
        match &self.own {
            Some(own) => own.path(),
            None => &self.path,
        }
    }
}

/// A host in a directory: files that stand for an image, and a fake VMM.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) dir: Root,
    pub(crate) vmm: Arc<FakeVmm>,
    pub(crate) config: Arc<Config>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// With further settings.
    pub(crate) fn with(settings: &[(&str, &str)]) -> Self {
        Self::of(FIRECRACKER, settings)
    }

    /// A host of another agent, whose own settings begin with its prefix.
    pub(crate) fn of(backend: Backend, settings: &[(&str, &str)]) -> Self {
        let own = tempfile::tempdir().unwrap();
        let mut bench = Self::at(own.path().to_owned(), backend, settings);
        bench.dir.own = Some(own);
        bench
    }

    /// In a directory that outlives it, where another one may have been.
    pub(crate) fn at(dir: PathBuf, backend: Backend, settings: &[(&str, &str)]) -> Self {
        std::fs::write(dir.join(backend.base), b"base image").unwrap();
        let root = dir.to_str().unwrap().to_owned();
        let lookup = |name: &str| {
            let given = settings.iter().find(|(key, _)| *key == name);
            given
                .map(|(_, value)| (*value).to_owned())
                .or_else(|| match name {
                    "FC_DIR" | "QEMU_DIR" | "FUSE_SYSFS" => Some(root.clone()),
                    "FC_AGENT_TOKEN" | "QEMU_AGENT_TOKEN" => Some("t0ken".to_owned()),
                    "FUSE_MIN_FREE_MB" | "FUSE_DEFAULT_STORAGE_GB" => Some("1".to_owned()),
                    _ => None,
                })
        };
        let config = Arc::new(Config::from_env(backend, lookup).unwrap());
        let sockets = dir.join("s");
        std::fs::create_dir_all(&sockets).unwrap();
        let mut vmm = FakeVmm::new(sockets);
        (vmm.told_at_start, vmm.snapshots) = (backend.gpus, !backend.gpus);
        Self {
            vmm: Arc::new(vmm),
            dir: Root {
                path: dir,
                own: None,
            },
            config,
        }
    }

    pub(crate) fn parts(&self) -> HostParts {
        HostParts {
            config: Arc::clone(&self.config),
            public_host: PublicHost::parse("127.0.0.1").unwrap(),
            vmm: Arc::clone(&self.vmm) as Arc<dyn crate::vmm::Vmm>,
            nft: tools::find("nft").unwrap(),
            mkfs: tools::find("mkfs.ext4").unwrap(),
        }
    }

    /// The control groups of its agent.
    pub(crate) fn cgroups(&self) -> Cgroups {
        let config = &self.config;
        Cgroups::open(config.backend.app_name, &config.paths.state).unwrap()
    }

    /// Everything that VMs have left on the host: nothing but the agent's own files, if all is well.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let list = |dir: PathBuf| -> Vec<String> {
            let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.path().display().to_string())
                .collect()
        };
        let mut found = list(self.config.paths.state.join("vms"));
        found.extend(list(self.dir.path().join("s")));
        let taps = run("ip", &["-o", "link"]);
        found.extend(
            taps.lines()
                .filter(|l| l.contains(": fcv") || l.contains(": qv"))
                .map(str::to_owned),
        );
        let rules = run("nft", &["list", "table", "inet", "fuse"]);
        found.extend(
            rules
                .lines()
                .filter(|l| l.contains("elements"))
                .map(str::to_owned),
        );
        found.extend(self.cgroups().known());
        found.extend(
            self.vmm
                .processes()
                .iter()
                .map(|pid| format!("process {pid}")),
        );
        found
    }

    pub(crate) fn vm_dir(&self, id: &str) -> PathBuf {
        self.config.paths.state.join("vms").join(id)
    }
}

/// An agent on loopback, and what it answers to raw bytes.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) address: std::net::SocketAddr,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    pub(crate) registry: Registry,
    pub(crate) bench: Bench,
}

impl Served {
    pub(crate) async fn start(settings: &[(&str, &str)]) -> Self {
        Self::of(FIRECRACKER, settings).await
    }

    pub(crate) async fn of(backend: Backend, settings: &[(&str, &str)]) -> Self {
        Self::on(Bench::of(backend, settings)).await
    }

    /// On a host that is there.
    pub(crate) async fn on(bench: Bench) -> Self {
        let registry = Registry::start(bench.parts()).await.unwrap();
        let listener = server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, tasks) = (CancellationToken::new(), TaskTracker::new());
        let router = App::new(registry.clone()).router();
        let idle = bench.config.http.idle;
        tasks.spawn(server::serve(
            (listener, None),
            router,
            idle,
            shutdown.clone(),
        ));
        tasks.close();
        Self {
            address,
            shutdown,
            tasks,
            registry,
            bench,
        }
    }

    /// Sends bytes, closes the sending side, and reads to the end.
    pub(crate) async fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    pub(crate) async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        self.raw(&format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
             Authorization: Bearer t0ken\r\n{headers}\r\n{body}"
        ))
        .await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> String {
        let length = format!("Content-Length: {}\r\n", body.len());
        self.send("POST", path, &length, body).await
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await;
    }
}

pub(crate) fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or(answer)
}

pub(crate) fn text(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

impl Drop for Bench {
    /// A test that leaves VMs behind leaves no groups: those are the machine's, not the directory's.
    fn drop(&mut self) {
        let groups = self.cgroups();
        for id in groups.known() {
            groups.group(&id).remove().unwrap();
        }
        groups.leave();
    }
}
