//! A guest in QEMU, and a client of its control API.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fuse_testkit::Image;
use fuse_wire_guest::boot::{KERNEL_ARGS, Network};
use fuse_wire_guest::control::{ExecRequest, ExecResponse, Ready, Status, path};
use fuse_wire_guest::mux::{Mux, MuxOpener, Role};
use fuse_wire_guest::{BootParams, CONTROL_PORT, READY_PORT};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Emulation on a busy machine is slow; a guest that hangs is told from that by minutes.
const PATIENCE: Duration = Duration::from_secs(180);

/// Guests that the tests of this program run at a time: emulation takes a CPU each.
static ROOM: Semaphore = Semaphore::const_new(2);

/// What the VM is made of.
pub(crate) struct Vm {
    image: Image,
    dir: TempDir,
    _room: SemaphorePermit<'static>,
    /// The base image, if not that of the image directory.
    pub(crate) base: Option<PathBuf>,
    /// Whether there is an overlay disk.
    pub(crate) overlay: bool,
    pub(crate) vm_id: String,
    pub(crate) mem_mib: u32,
}

/// A running guest. Dropping it ends QEMU.
pub(crate) struct Guest {
    qemu: Child,
    pub(crate) opener: MuxOpener,
    pub(crate) ready: Ready,
    vm: Vm,
    session: JoinSet<()>,
}

impl Vm {
    /// Parts for a guest, `None` (and a line that says why) where none can run.
    pub(crate) async fn new(test: &str) -> Option<Self> {
        let skip = |reason: &str| {
            fuse_testkit::report_skip(test, reason);
            None
        };
        let image = match Image::find() {
            Ok(image) => image,
            Err(error) => return skip(&error.to_string()),
        };
        let qemu = std::process::Command::new("qemu-system-x86_64")
            .arg("--version")
            .output();
        if qemu.is_err() {
            return skip("qemu-system-x86_64 is not installed");
        }
        let dir = tempfile::tempdir().unwrap();
        let vm = Self {
            image,
            dir,
            _room: ROOM.acquire().await.unwrap(),
            base: None,
            overlay: true,
            vm_id: "vm-it".to_owned(),
            mem_mib: 512,
        };
        vm.set_overlay_size(2 << 30);
        Some(vm)
    }

    /// The overlay disk, blank at first.
    pub(crate) fn overlay_path(&self) -> PathBuf {
        self.dir.path().join("overlay.img")
    }

    /// Makes the overlay disk anew, blank and sparse.
    pub(crate) fn set_overlay_size(&self, bytes: u64) {
        File::create(self.overlay_path())
            .unwrap()
            .set_len(bytes)
            .unwrap();
    }

    /// What the guest's kernel and early errors say.
    pub(crate) fn console(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("console.log")).unwrap_or_default()
    }

    /// Starts it and waits for its ready signal.
    pub(crate) async fn boot(self) -> Guest {
        let socket = self.socket();
        std::fs::remove_file(&socket).ok();
        let mut qemu = self.qemu(&socket);
        let stream = connect(&socket, &mut qemu).await;
        let mut mux = Mux::new(stream, Role::Host);
        let Ok(ready) = timeout(PATIENCE, ready_line(&mut mux)).await else {
            panic!(
                "the guest was not ready in time; its console:
{}",
                self.console()
            )
        };
        let (opener, session) = hold(mux);
        Guest {
            qemu,
            opener,
            ready,
            vm: self,
            session,
        }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("port.sock")
    }

    fn qemu(&self, socket: &Path) -> Child {
        let params = BootParams {
            vm_id: self.vm_id.clone(),
            hostname: format!("{}-host", self.vm_id),
            network: Some(Network {
                address: "10.0.2.15".parse().unwrap(),
                prefix: 24,
                gateway: "10.0.2.2".parse().unwrap(),
                dns: vec!["10.0.2.3".parse().unwrap()],
            }),
        };
        // Address randomisation would make QEMU translate libraries anew for every program.
        let cmdline = format!("{KERNEL_ARGS} norandmaps {}", params.to_cmdline().unwrap());
        let base = self.base.clone().unwrap_or_else(|| self.image.base());
        let file = |path: &Path| path.display().to_string();
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args([
            "-accel",
            "tcg",
            "-M",
            "q35",
            "-cpu",
            "max",
            "-nodefaults",
            "-no-user-config",
        ])
        .args([
            "-display",
            "none",
            "-no-reboot",
            "-m",
            &self.mem_mib.to_string(),
        ])
        .args(["-kernel", &file(&self.image.kernel())])
        .args(["-initrd", &file(&self.image.initramfs())])
        .args(["-append", &cmdline])
        .args([
            "-serial",
            &format!("file:{}", file(&self.dir.path().join("console.log"))),
        ])
        .args([
            "-drive",
            &format!(
                "if=none,id=base,format=raw,readonly=on,file={}",
                file(&base)
            ),
        ])
        .args(["-device", "virtio-blk-pci,drive=base"])
        .args([
            "-netdev",
            "user,id=net",
            "-device",
            "virtio-net-pci,netdev=net",
        ])
        .args([
            "-chardev",
            &format!("socket,id=port,server=on,wait=off,path={}", file(socket)),
        ])
        .args(["-device", "virtio-serial-pci"])
        .args([
            "-device",
            "virtserialport,chardev=port,name=org.fuse.control",
        ]);
        if self.overlay {
            let overlay = file(&self.overlay_path());
            qemu.args([
                "-drive",
                &format!("if=none,id=overlay,format=raw,file={overlay}"),
            ])
            .args(["-device", "virtio-blk-pci,drive=overlay"]);
        }
        qemu.stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }
}

/// Keeps a session going. Nothing more is expected from the guest; what comes is refused.
fn hold(mut mux: Mux) -> (MuxOpener, JoinSet<()>) {
    let opener = mux.opener();
    let mut session = JoinSet::new();
    session.spawn(async move { while mux.accept().await.is_some() {} });
    (opener, session)
}

async fn connect(socket: &Path, qemu: &mut Child) -> UnixStream {
    let connected = async {
        let mut check = tokio::time::interval(Duration::from_millis(20));
        loop {
            check.tick().await;
            if let Ok(stream) = UnixStream::connect(socket).await {
                return stream;
            }
        }
    };
    tokio::select! {
        stream = connected => stream,
        status = qemu.wait() => panic!("QEMU ended before it ran: {status:?}"),
    }
}

async fn ready_line(mux: &mut Mux) -> Ready {
    let incoming = mux.accept().await.expect("the guest's port closed");
    assert_eq!(incoming.port(), READY_PORT);
    let mut line = String::new();
    incoming
        .accept()
        .await
        .unwrap()
        .read_to_string(&mut line)
        .await
        .unwrap();
    serde_json::from_str(&line).unwrap()
}

impl Guest {
    /// Leaves the guest's port and comes back, as a host agent's emulator does
    /// that was started again.
    pub(crate) async fn reconnect(&mut self) {
        self.session.shutdown().await;
        let stream = connect(&self.vm.socket(), &mut self.qemu).await;
        (self.opener, self.session) = hold(Mux::new(stream, Role::Host));
    }

    /// One exchange with the control API.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Vec<u8>) -> (u16, Bytes) {
        let exchange = async {
            let stream = self.opener.open(CONTROL_PORT).await.unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream))
                    .await
                    .unwrap();
            let mut driver = JoinSet::new();
            driver.spawn(async move { connection.await.unwrap_or(()) });
            let request = hyper::Request::builder()
                .method(method)
                .uri(path)
                .header("host", "guest")
                .body(Full::new(Bytes::from(body)))
                .unwrap();
            let response = sender.send_request(request).await.unwrap();
            let status = response.status().as_u16();
            (
                status,
                response.into_body().collect().await.unwrap().to_bytes(),
            )
        };
        match timeout(PATIENCE, exchange).await {
            Ok(answer) => answer,
            Err(_) => panic!("{method} {path} was not answered; {}", self.vm.console()),
        }
    }

    /// A JSON call that must succeed.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &impl Serialize,
    ) -> T {
        let (status, answer) = self
            .call(method, path, serde_json::to_vec(body).unwrap())
            .await;
        let text = String::from_utf8_lossy(&answer);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_slice(&answer).unwrap()
    }

    /// Runs a command.
    pub(crate) async fn exec(&self, request: &ExecRequest) -> ExecResponse {
        self.json("POST", path::EXEC, request).await
    }

    /// Runs a shell script; however it ends.
    pub(crate) async fn run(&self, script: &str) -> ExecResponse {
        let cmd = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        self.exec(&ExecRequest {
            cmd,
            timeout_ms: 120_000,
            ..ExecRequest::default()
        })
        .await
    }

    /// Standard output of a shell script that must succeed, without the last line's end.
    pub(crate) async fn sh(&self, script: &str) -> String {
        let response = self.run(script).await;
        let stderr = String::from_utf8_lossy(&response.stderr_b64.0);
        assert_eq!(response.exit_code, 0, "{script}: {stderr}");
        String::from_utf8(response.stdout_b64.0)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    pub(crate) async fn status(&self) -> Status {
        let (code, body) = self.call("GET", path::STATUS, Vec::new()).await;
        assert_eq!(code, 200);
        serde_json::from_slice(&body).unwrap()
    }

    /// Waits for QEMU to end by itself; gives back what the VM is made of.
    pub(crate) async fn ended(mut self) -> Vm {
        let status = timeout(PATIENCE, self.qemu.wait())
            .await
            .expect("the guest did not go down");
        assert!(status.unwrap().success());
        self.vm
    }

    /// Ends QEMU at once, as a host's power failure would.
    pub(crate) async fn kill(mut self) -> Vm {
        self.qemu.kill().await.unwrap();
        self.vm
    }
}
