//! The virtio-serial port as an asynchronous byte stream.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fuse_wire_guest::SERIAL_PORT_NAME;
use rustix::event::epoll;
use rustix::fs::OFlags;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::sys;

const PORTS: &str = "/sys/class/virtio-ports";

/// The device file of the control port, if the VM has one.
pub(super) fn find() -> Option<PathBuf> {
    let named = |dir: &Path| {
        fs::read_to_string(dir.join("name")).is_ok_and(|name| name.trim() == SERIAL_PORT_NAME)
    };
    fs::read_dir(PORTS)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|dir| named(dir))
        .and_then(|dir| Some(Path::new("/dev").join(dir.file_name()?)))
}

/// Opens the port, which nobody else may have open.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
}

/// Blocks until the host has its end of the port open.
///
/// While it has not, the port reports a hang-up all the time, so only changes
/// of its state are waited for.
pub(super) fn wait_for_host(port: &File) -> io::Result<()> {
    let queue = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let interest = epoll::EventFlags::OUT | epoll::EventFlags::ET;
    epoll::add(&queue, port, epoll::EventData::new_u64(0), interest)?;
    let mut events = Vec::with_capacity(1);
    loop {
        match epoll::wait(&queue, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let connected = |event: &epoll::Event| {
            let flags = event.flags;
            flags.contains(epoll::EventFlags::OUT) && !flags.contains(epoll::EventFlags::HUP)
        };
        if events.iter().any(connected) {
            return Ok(());
        }
        events.clear();
    }
}

/// A registered port. Reads end when the host closes its end.
#[derive(Debug)]
pub(super) struct Port(AsyncFd<OwnedFd>);

impl Port {
    pub(super) fn new(file: File) -> io::Result<Self> {
        sys::watch_fd(file.into()).map(Self)
    }
}

impl AsyncRead for Port {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            let unfilled = buf.initialize_unfilled();
            match guard.try_io(|port| Ok(rustix::io::read(port, &mut *unfilled)?)) {
                Ok(result) => {
                    buf.advance(result?);
                    return Poll::Ready(Ok(()));
                }
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Port {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            match guard.try_io(|port| Ok(rustix::io::write(port, buf)?)) {
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
