//! The host agent of the stack: its settings, its start, its end, and the end of its VMs.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::daemon::Daemon;
use super::error::file_error;
use super::record::Stack;
use super::tokens::Tokens;
use super::{Error, Layout};

/// Name of the program.
pub(super) const PROGRAM: &str = "fc-agent";
/// How long it may take to end: requests in flight are finished.
const GRACE: Duration = Duration::from_secs(30);

/// The kernel's name where the agent looks for it.
const KERNEL: &str = "vmlinux.bin";

/// The daemon.
pub(super) fn daemon(layout: &Layout) -> Daemon {
    Daemon::new(layout, PROGRAM)
}

/// Everything that an agent of this stack is told. It listens on the loopback only.
fn settings(
    layout: &Layout,
    dir: &Path,
    port: u16,
    vmm: PathBuf,
) -> Result<Vec<(&'static str, OsString)>, Error> {
    let token = Tokens::agent(layout)?;
    Ok(vec![
        ("FC_DIR", dir.into()),
        ("FC_AGENT_TOKEN", token.reveal().into()),
        ("FC_AGENT_BIND", "127.0.0.1".into()),
        ("FC_AGENT_PORT", port.to_string().into()),
        ("FC_SOCK_DIR", layout.socket_dir().into()),
        ("FC_INITRD", layout.image.join("initramfs.img").into()),
        ("BASE_ROOTFS", layout.image.join("rootfs-fused.ext4").into()),
        ("IMAGES_DIR", layout.image.join("images").into()),
        ("FC_BIN", vmm.into()),
        ("PUBLIC_HOST", "127.0.0.1".into()),
    ])
}

/// Settings of the agent that the stack's record describes.
fn recorded(layout: &Layout) -> Result<Vec<(&'static str, OsString)>, Error> {
    let path = layout.file("stack.json");
    let stack = Stack::load(layout).ok_or(Error::Damaged {
        path,
        expected: "the record of a local stack",
    })?;
    settings(
        layout,
        &layout.agent_dir(),
        stack.agent_port,
        stack.vmm_program.clone(),
    )
}

/// Starts the agent.
///
/// # Errors
/// When its directories cannot be made or it cannot be started.
pub(super) fn start(layout: &Layout) -> Result<(), Error> {
    prepare(layout, &layout.agent_dir())?;
    let settings = recorded(layout)?;
    daemon(layout).start(
        &layout.program(PROGRAM),
        &layout.agent_dir(),
        &settings,
        &[],
    )?;
    Ok(())
}

/// Makes the agent's directories and shows it the kernel.
fn prepare(layout: &Layout, dir: &Path) -> Result<(), Error> {
    for dir in [dir, &layout.socket_dir()] {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir);
        made.map_err(file_error("create", dir))?;
    }
    let kernel = layout.image.join(KERNEL);
    let link = dir.join(KERNEL);
    if fs::read_link(&link).is_ok_and(|target| target == kernel) {
        return Ok(());
    }
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(file_error("replace", &link)(error));
        }
        _ => {}
    }
    std::os::unix::fs::symlink(&kernel, &link).map_err(file_error("create", &link))
}

/// Stops the agent. VMs are none of its process's business and go on.
///
/// # Errors
/// When it cannot be stopped.
pub(super) fn stop(layout: &Layout) -> Result<(), Error> {
    daemon(layout).stop(GRACE)?;
    Ok(())
}

/// Ends the VMs of a stopped agent; the next one boots them again from their disks.
///
/// # Errors
/// When the agent's program says that it could not.
pub(super) fn stop_vms(layout: &Layout) -> Result<(), Error> {
    if !layout.agent_dir().exists() {
        return Ok(());
    }
    let output = Command::new(layout.program(PROGRAM))
        .arg("stop-vms")
        .envs(recorded(layout)?)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            program: layout.program(PROGRAM),
            source,
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr)
        .trim_end()
        .to_owned();
    Err(Error::RootStep {
        what: "stopping the VMs",
        said,
    })
}

/// Boots one guest under `vmm`, in a directory of its own, and returns what the agent's program
/// printed about it.
///
/// # Errors
/// When the program cannot be run; a guest that does not boot is an answer.
pub(super) fn probe(layout: &Layout, vmm: PathBuf) -> Result<String, Error> {
    let dir = layout.file("probe");
    prepare(layout, &dir)?;
    let output = Command::new(layout.program(PROGRAM))
        .arg("probe")
        .envs(settings(layout, &dir, 0, vmm)?)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| Error::Start {
            program: layout.program(PROGRAM),
            source,
        })?;
    fs::remove_dir_all(&dir).map_err(file_error("remove", &dir))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
