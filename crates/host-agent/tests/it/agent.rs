//! An agent process, and what it and its VMs leave on the machine.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fuse_host_agent::cgroup::Cgroups;
use fuse_host_agent::config::{Backend, FIRECRACKER, QEMU};
use fuse_wire_host::{
    AgentToken, AgentUrl, CreateVmRequest, ExecRequest, ExecResponse, HostClient, HostTransport,
};

use crate::machine::{Image, run};

/// Port of the agent on the test's machine.
pub(crate) const PORT: u16 = 8090;
const TOKEN: &str = "test-token-0123456789";

/// One of the programs.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) backend: Backend,
    pub(crate) path: &'static str,
}

/// The agent of hosts that run Firecracker.
pub(crate) const FC: Program = Program {
    backend: FIRECRACKER,
    path: env!("CARGO_BIN_EXE_fc-agent"),
};

/// The agent of hosts that give GPUs to their guests.
pub(crate) const GPU: Program = Program {
    backend: QEMU,
    path: env!("CARGO_BIN_EXE_qemu-agent"),
};

impl Program {
    /// The VMM that it is given here.
    fn vmm(self, image: &Image) -> PathBuf {
        match self.backend.gpus {
            true => self.backend.vmm.into(),
            false => image.emulator.clone(),
        }
    }

    /// A command of it, with everything that a guest needs.
    pub(crate) fn command(self, dir: &Path, image: &Image) -> Command {
        let prefix = self.backend.prefix;
        let own = |name: &str| format!("{prefix}_{name}");
        let mut command = Command::new(self.path);
        command
            .env(own("DIR"), dir)
            .env(own("SOCK_DIR"), dir.join("s"))
            .env(own("KERNEL"), image.dir.join("vmlinux.bin"))
            .env(own("INITRD"), image.dir.join("initramfs.img"))
            .env("BASE_ROOTFS", image.dir.join("rootfs-fused.ext4"))
            .env(own("BIN"), self.vmm(image))
            .env("QEMU_ACCELERATOR", "tcg")
            .stdin(Stdio::null());
        command
    }
}

/// An agent in a directory of its own. Ends everything it started when dropped.
pub(crate) struct Agent {
    dir: tempfile::TempDir,
    program: Program,
    image: Image,
    settings: Vec<(&'static str, String)>,
    process: Option<Child>,
    pub(crate) client: HostClient,
}

impl Agent {
    pub(crate) fn new(program: Program, image: &Image, settings: &[(&'static str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = AgentUrl::parse(&format!("http://127.0.0.1:{PORT}")).unwrap();
        let transport = HostTransport::new().unwrap();
        Self {
            client: HostClient::new(transport, url, AgentToken::new(TOKEN)),
            program,
            image: image.clone(),
            settings: settings
                .iter()
                .map(|(k, v)| (*k, (*v).to_owned()))
                .collect(),
            process: None,
            dir,
        }
    }

    pub(crate) async fn start(
        program: Program,
        image: &Image,
        settings: &[(&'static str, &str)],
    ) -> Self {
        let mut agent = Self::new(program, image, settings);
        agent.launch().await;
        agent
    }

    /// Starts the process and returns when it serves.
    pub(crate) async fn launch(&mut self) {
        let log = std::fs::File::create(self.dir.path().join("agent.log")).unwrap();
        let prefix = self.program.backend.prefix;
        let mut command = self.program.command(self.dir.path(), &self.image);
        command
            .env(format!("{prefix}_AGENT_TOKEN"), TOKEN)
            .env(format!("{prefix}_AGENT_PORT"), PORT.to_string())
            .env("PUBLIC_HOST", crate::machine::HOST)
            .envs(self.settings.iter().map(|(k, v)| (k, v)))
            .stdout(Stdio::null())
            .stderr(log);
        self.process = Some(command.spawn().unwrap());
        while self.client.health().await.is_err() {
            let ended = self.process.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where a guest is, by its published surface: either of two that are made at once may be the
    /// first.
    pub(crate) fn guest_address(&self, url: &str) -> String {
        let (_, port) = url.rsplit_once(':').unwrap();
        let index = port.parse::<u16>().unwrap() - self.program.backend.port_base;
        format!("10.200.{index}.2")
    }

    fn sockets(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    pub(crate) async fn create(&self, name: &str) -> fuse_wire_host::VmView {
        let request = CreateVmRequest {
            name: Some(name.into()),
            memory_mb: Some(256),
            storage_gb: Some(1),
            owner: Some("fleet-1".into()),
            ..CreateVmRequest::default()
        };
        match self.client.create(&request).await {
            Ok(view) => view,
            Err(error) => panic!("{error}\n{}", self.log()),
        }
    }

    pub(crate) async fn exec(&self, vm: &str, cmd: &[&str]) -> ExecResponse {
        let cmd = cmd.iter().map(|word| (*word).to_owned()).collect();
        let request = ExecRequest {
            cmd,
            timeout_ms: Some(30_000),
            ..ExecRequest::default()
        };
        self.client.exec(vm, &request).await.unwrap()
    }

    /// Whether a connection from a guest succeeds.
    pub(crate) async fn reaches(&self, vm: &str, address: &str, port: u16) -> bool {
        let connect = format!("exec 3<>/dev/tcp/{address}/{port}");
        self.exec(vm, &["timeout", "3", "bash", "-c", &connect])
            .await
            .exit_code
            == 0
    }

    /// Everything that VMs have left: empty when all is well.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let list = |dir: PathBuf| -> Vec<String> {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries
                .map(|entry| entry.path().display().to_string())
                .collect()
        };
        let mut found = list(self.dir.path().join("agent-state/vms"));
        found.extend(list(self.sockets()));
        let links = run(&["ip", "-o", "link"]);
        found.extend(
            links
                .lines()
                .filter(|l| l.contains(": fcv") || l.contains(": qv"))
                .map(str::to_owned),
        );
        let rules = run(&["nft", "list", "table", "inet", "fuse"]);
        found.extend(
            rules
                .lines()
                .filter(|l| l.contains("elements"))
                .map(str::to_owned),
        );
        found.extend(
            self.processes()
                .iter()
                .map(|(pid, line)| format!("{pid} {line}")),
        );
        found.extend(self.cgroups().known());
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let dir = self.dir.path().display().to_string();
        found.extend(
            mounts
                .lines()
                .filter(|l| l.contains(&dir))
                .map(str::to_owned),
        );
        found
    }

    /// The control groups of this agent's VMs.
    pub(crate) fn cgroups(&self) -> Cgroups {
        Cgroups::open(
            self.program.backend.app_name,
            &self.dir.path().join("agent-state"),
        )
        .unwrap()
    }

    /// Processes of this agent's VMs: those that name its directory, or its image and a VM of it.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let dir = self.dir.path().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if let Some(pid) = pid.filter(|_| line.contains(&dir)) {
                found.push((pid, line));
            }
        }
        found
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
        for (pid, _) in self.processes() {
            // It may have gone with another one of its group.
            let _gone = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        let groups = self.cgroups();
        for id in groups.known() {
            groups.group(&id).remove().unwrap();
        }
        groups.leave();
    }
}
