//! The ways in from the host: vsock, and a serial port with many streams.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use fuse_wire_guest::mux::{Mux, MuxOpener, Role};
use fuse_wire_guest::{CONTROL_PORT, READY_PORT};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;
use tokio_vsock::{VMADDR_CID_ANY, VMADDR_CID_HOST, VsockAddr, VsockListener, VsockStream};

use super::serial;

/// Connections over vsock at a time; a serial port has a limit of its own.
const MAX_VSOCK_CONNECTIONS: usize = 256;

/// A host that opens a connection must send its request's head within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after a failed accept: the cause, such as missing memory, does not go
/// away by trying again at once, and nothing tells when it has.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A byte stream to the host.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The transports that this VM has.
#[derive(Debug)]
pub(crate) struct Transports {
    vsock: bool,
    /// The current session of the serial port, if there is one.
    serial: Option<watch::Receiver<Option<MuxOpener>>>,
}

impl Transports {
    /// Serves `router` on every transport that the VM has.
    ///
    /// # Errors
    /// The VM has none, or it cannot be opened.
    pub(crate) fn serve(router: &Router, tasks: &TaskTracker) -> io::Result<Self> {
        let vsock = Path::new("/dev/vsock").exists();
        if vsock {
            let listener = VsockListener::bind(VsockAddr::new(VMADDR_CID_ANY, CONTROL_PORT))?;
            tasks.spawn(serve_vsock(listener, router.clone(), tasks.clone()));
        }
        let serial = match serial::find() {
            None => None,
            Some(path) => {
                let port = serial::open(&path)?;
                let (sender, receiver) = watch::channel(None);
                tasks.spawn(serve_serial(port, router.clone(), sender, tasks.clone()));
                Some(receiver)
            }
        };
        if !vsock && serial.is_none() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the VM has neither vsock nor a control port",
            ));
        }
        Ok(Self { vsock, serial })
    }

    /// Dials the host's ready port over whichever transport takes it.
    pub(super) async fn dial_ready(&mut self) -> io::Result<Box<dyn Stream>> {
        if self.vsock {
            let dialled = VsockStream::connect(VsockAddr::new(VMADDR_CID_HOST, READY_PORT)).await;
            match (dialled, &self.serial) {
                (Ok(stream), _) => return Ok(Box::new(stream)),
                (Err(error), None) => return Err(error),
                (Err(_), Some(_)) => {}
            }
        }
        let Some(serial) = &mut self.serial else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let session = serial
            .wait_for(Option::is_some)
            .await
            .map_err(io::Error::other)?
            .clone();
        let Some(opener) = session else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        Ok(Box::new(
            opener.open(READY_PORT).await.map_err(io::Error::other)?,
        ))
    }
}

async fn serve_vsock(listener: VsockListener, router: Router, tasks: TaskTracker) {
    let slots = Arc::new(Semaphore::new(MAX_VSOCK_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            // Not from the host: a user of the guest may not speak to PID 1.
            Ok((_, peer)) if peer.cid() != VMADDR_CID_HOST => {}
            Ok((stream, _)) => {
                let serve = serve_connection(stream, router.clone());
                tasks.spawn(async move {
                    serve.await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "vsock connection lost before it was taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_serial(
    port: std::fs::File,
    router: Router,
    session: watch::Sender<Option<MuxOpener>>,
    tasks: TaskTracker,
) {
    loop {
        match attach(&port).await {
            Ok(mut mux) => {
                session.send_replace(Some(mux.opener()));
                while let Some(incoming) = mux.accept().await {
                    if incoming.port() != CONTROL_PORT {
                        continue;
                    }
                    let router = router.clone();
                    tasks.spawn(async move {
                        if let Ok(stream) = incoming.accept().await {
                            serve_connection(stream, router).await;
                        }
                    });
                }
                session.send_replace(None);
            }
            Err(error) => {
                tracing::error!(%error, "the control port is lost");
                return;
            }
        }
    }
}

/// Waits until the host is there and starts to speak with it.
async fn attach(port: &std::fs::File) -> io::Result<Mux> {
    let waiting = port.try_clone()?;
    tokio::task::spawn_blocking(move || serial::wait_for_host(&waiting)).await??;
    Ok(Mux::new(serial::Port::new(port.try_clone()?)?, Role::Guest))
}

async fn serve_connection<T>(stream: T, router: Router)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "control connection ended early");
    }
}
