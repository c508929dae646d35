//! The yardstick: the same kernel, initramfs and devices, booted by QEMU with nothing of Fuse around it.
//!
//! The command line is that of a real VM, taken from the running process; only what was inherited from the emulator
//! (monitor, tap and channel descriptors) is replaced by equivalents that need no emulator.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuse_wire_guest::{CONTROL_PORT, Mux, READY_PORT, Role, control::path};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::process::{Child, Command};

/// A guest that is not up by then is broken.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);

/// How to boot the bare guest.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    program: PathBuf,
    args: Vec<String>,
    channel: PathBuf,
}

impl Recipe {
    /// Takes the command line of the QEMU process `pid`; `tap` and `overlay` stand in for those of the VM, and
    /// `dir` takes the channel's socket.
    ///
    /// # Errors
    /// When the command line is not one of the emulator's.
    pub(crate) fn from_process(
        pid: u32,
        tap: &str,
        overlay: (&Path, &Path),
        dir: &Path,
    ) -> Result<Self> {
        let raw = std::fs::read(format!("/proc/{pid}/cmdline"))
            .with_context(|| format!("arguments of {pid}"))?;
        let words: Vec<String> = raw
            .split(|&b| b == 0)
            .filter(|word| !word.is_empty())
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        Self::from_words(&words, tap, overlay, dir)
    }

    fn from_words(
        words: &[String],
        tap: &str,
        overlay: (&Path, &Path),
        dir: &Path,
    ) -> Result<Self> {
        let channel = dir.join("bare.sock");
        let [old, new] = [overlay.0, overlay.1].map(|path| path.to_string_lossy().into_owned());
        let mut args = Vec::new();
        let mut rest = words.iter().skip(1);
        while let Some(word) = rest.next() {
            match word.as_str() {
                "-S" => {}
                "-mon" => drop(rest.next()),
                "-chardev" => {
                    let value = rest.next().context("-chardev without a value")?;
                    if value.starts_with("socket,id=vsock,") {
                        let ours = format!("socket,id=vsock,path={}", channel.display());
                        args.extend([word.clone(), ours]);
                    } else if !value.starts_with("socket,id=qmp,") {
                        args.extend([word.clone(), value.clone()]);
                    }
                }
                "-netdev" => {
                    let value = rest.next().context("-netdev without a value")?;
                    let id = value
                        .split(',')
                        .find(|part| part.starts_with("id="))
                        .context("netdev id")?;
                    let ours = format!("tap,{id},ifname={tap},script=no,downscript=no,vhost=off");
                    args.extend([word.clone(), ours]);
                }
                _ => args.push(word.replace(&old, &new)),
            }
        }
        let has = |what: &str| args.iter().any(|arg| arg.contains(what));
        ensure!(has("socket,id=vsock,path="), "no channel in {args:?}");
        ensure!(has(&new), "no overlay disk in {args:?}");
        ensure!(has(tap), "no network in {args:?}");
        let program = words.first().context("no program")?.into();
        Ok(Self {
            program,
            args,
            channel,
        })
    }

    /// Boots once: time from starting QEMU until the guest's control API has answered.
    ///
    /// # Errors
    /// When the guest does not come up.
    pub(crate) async fn boot(&self) -> Result<Duration> {
        if self.channel.exists() {
            std::fs::remove_file(&self.channel)?;
        }
        let listener = UnixListener::bind(&self.channel)
            .with_context(|| format!("bind {}", self.channel.display()))?;
        let start = Instant::now();
        let mut qemu = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        let up = tokio::time::timeout(BOOT_DEADLINE, answered(&listener)).await;
        let took = start.elapsed();
        let said = end(&mut qemu).await?;
        up.with_context(|| format!("the bare guest is not up: {said}"))?
            .context("the bare guest's channel")?;
        Ok(took)
    }
}

/// Waits for the ready signal and for the answer to one status request, as the host agent does.
async fn answered(listener: &UnixListener) -> Result<()> {
    let (socket, _) = listener.accept().await?;
    let mut mux = Mux::new(socket, Role::Host);
    loop {
        let incoming = mux.accept().await.context("the channel closed")?;
        if incoming.port() == READY_PORT {
            let mut line = String::new();
            incoming.accept().await?.read_to_string(&mut line).await?;
            ensure!(!line.contains("\"error\""), "the guest reports {line}");
            break;
        }
    }
    let mut control = mux.open(CONTROL_PORT).await?;
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\n\r\n",
        path::STATUS
    );
    control.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    control.read_to_string(&mut answer).await?;
    ensure!(
        answer.starts_with("HTTP/1.1 200"),
        "status answered {answer}"
    );
    Ok(())
}

async fn end(qemu: &mut Child) -> Result<String> {
    qemu.kill().await.context("kill the bare QEMU")?;
    let mut said = String::new();
    if let Some(stderr) = qemu.stderr.as_mut() {
        stderr.read_to_string(&mut said).await?;
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inherited_things_are_replaced() {
        let line = "qemu-system-x86_64 -nodefaults -S -kernel /i/vmlinux.bin -chardev socket,id=qmp,fd=9 \
                    -mon chardev=qmp,mode=control -chardev stdio,id=console,signal=off -serial chardev:console \
                    -blockdev {\"filename\":\"/vms/a/overlay.img\"} -netdev tap,id=net-eth0,fd=11,vhost=off \
                    -chardev socket,id=vsock,fd=12 -device virtserialport";
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let overlay = (Path::new("/vms/a/overlay.img"), Path::new("/b/o.img"));
        let recipe = Recipe::from_words(&words, "ft0vb", overlay, Path::new("/b")).unwrap();
        let expected = "-nodefaults -kernel /i/vmlinux.bin -chardev stdio,id=console,signal=off -serial chardev:console \
                        -blockdev {\"filename\":\"/b/o.img\"} \
                        -netdev tap,id=net-eth0,ifname=ft0vb,script=no,downscript=no,vhost=off \
                        -chardev socket,id=vsock,path=/b/bare.sock -device virtserialport";
        assert_eq!(recipe.args, expected.split_whitespace().collect::<Vec<_>>());
    }
}
