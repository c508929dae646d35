//! A machine of the test's own: a thread in a fresh network namespace, and another machine that is
//! joined to it by a cable.

use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// Address of the test's machine on the cable.
pub(crate) const HOST: &str = "198.51.100.1";
/// Address of the other machine.
pub(crate) const OUTSIDE: &str = "198.51.100.2";

/// What guests boot from.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) dir: PathBuf,
    pub(crate) emulator: PathBuf,
}

/// Runs `test` on a machine of its own, or says why not.
pub(crate) fn on_a_machine<F: Future<Output = ()>>(
    name: &'static str,
    test: impl FnOnce(Image, Outside) -> F + Send + 'static,
) {
    let image = match find_image() {
        Ok(image) => image,
        Err(reason) => {
            let mut stderr = std::io::stderr().lock();
            writeln!(stderr, "SKIP host-agent::{name}: {reason}").unwrap();
            return;
        }
    };
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        run(&["ip", "link", "set", "lo", "up"]);
        let outside = Outside::connect();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder
            .enable_all()
            .build()
            .unwrap()
            .block_on(test(image, outside));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn find_image() -> Result<Image, String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("needs root for network namespaces".into());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Err("no /dev/net/tun".into());
    }
    for tool in ["nft", "ip", "mkfs.ext4", "nsenter", "qemu-system-x86_64"] {
        if fuse_host_agent::tools::find(tool).is_none() {
            return Err(format!("{tool} is not installed"));
        }
    }
    let emulator = PathBuf::from(env!("CARGO_BIN_EXE_fc-agent")).with_file_name("fc-emulator");
    if !emulator.is_file() {
        return Err("fc-emulator is not built: cargo build -p fuse-fc-emulator".into());
    }
    let var = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let dir = var("FUSE_IMAGE_DIR")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("fuse/image")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache/fuse/image")));
    let dir = dir.ok_or("neither FUSE_IMAGE_DIR nor HOME is set")?;
    for file in ["vmlinux.bin", "initramfs.img", "rootfs-fused.ext4"] {
        if !dir.join(file).is_file() {
            return Err(format!("no {file} in {}: run make image", dir.display()));
        }
    }
    Ok(Image { dir, emulator })
}

/// Runs a program and gives back what it printed.
pub(crate) fn run(words: &[&str]) -> String {
    let done = output(words);
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{words:?}: {stderr}");
    String::from_utf8(done.stdout).unwrap()
}

fn output(words: &[&str]) -> Output {
    let program = fuse_host_agent::tools::find(words[0]).unwrap();
    Command::new(program).args(&words[1..]).output().unwrap()
}

/// Another machine on a cable. It is a process in a namespace of its own.
pub(crate) struct Outside {
    keeper: Child,
}

impl Outside {
    fn connect() -> Self {
        let mut keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo; exec sleep 3600"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Its line comes from within the new namespace.
        let mut line = [0];
        std::io::Read::read_exact(keeper.stdout.as_mut().unwrap(), &mut line).unwrap();
        let outside = Self { keeper };
        let pid = outside.keeper.id().to_string();
        run(&[
            "ip",
            "link",
            "add",
            "cable",
            "type",
            "veth",
            "peer",
            "name",
            "cable-out",
        ]);
        run(&["ip", "link", "set", "cable-out", "netns", &pid]);
        run(&["ip", "addr", "add", &format!("{HOST}/24"), "dev", "cable"]);
        run(&["ip", "link", "set", "cable", "up"]);
        outside.run(&[
            "ip",
            "addr",
            "add",
            &format!("{OUTSIDE}/24"),
            "dev",
            "cable-out",
        ]);
        outside.run(&["ip", "link", "set", "cable-out", "up"]);
        outside.run(&["ip", "link", "set", "lo", "up"]);
        outside
    }

    /// Runs a program there.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        let pid = self.keeper.id().to_string();
        run(&[&["nsenter", "-t", &pid, "-n"], words].concat())
    }

    /// Starts a program there.
    pub(crate) fn start(&self, words: &[&str]) -> Child {
        let pid = self.keeper.id().to_string();
        Command::new("nsenter")
            .args(["-t", &pid, "-n"])
            .args(words)
            .spawn()
            .unwrap()
    }

    /// Whether a connection from there succeeds.
    pub(crate) fn reaches(&self, address: &str, port: u16) -> bool {
        let pid = self.keeper.id().to_string();
        let connect = format!("exec 3<>/dev/tcp/{address}/{port}");
        let words = [
            "nsenter", "-t", &pid, "-n", "timeout", "3", "bash", "-c", &connect,
        ];
        output(&words).status.success()
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.keeper.kill().unwrap();
        self.keeper.wait().unwrap();
    }
}
