//! A VMM without a machine: this program again, started by an agent as its `FC_BIN`.
//!
//! It serves Firecracker's API and says yes to everything; the guest of its machine is an answer. So
//! what an agent costs with hundreds of VMs can be measured on a machine that holds a handful.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use bytes::Bytes;
use fuse_wire_guest::boot::BootParams;
use fuse_wire_guest::{GENERATION, READY_PORT, Ready, vsock};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// What the machine is to be, as far as it matters to one that is none.
#[derive(Debug, Default)]
struct Machine {
    channel: PathBuf,
    vm_id: String,
}

type Shared = Arc<Mutex<Machine>>;

/// The socket to serve, if the arguments are those of a VMM.
pub(crate) fn api_socket(arguments: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let mut arguments = arguments.skip_while(|argument| argument != "--api-sock");
    arguments.nth(1).map(PathBuf::from)
}

/// Serves until it is killed.
pub(crate) fn run(socket: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = UnixListener::bind(socket).context("bind the API socket")?;
        let machine = Shared::default();
        let mut tasks = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await?;
            let machine = Arc::clone(&machine);
            let (starts, mut started) = tokio::sync::mpsc::channel(1);
            let api =
                service_fn(move |request| obey(request, Arc::clone(&machine), starts.clone()));
            let serve = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), api);
            // One connection per call, as the agent makes them; one that breaks is its own affair.
            drop(serve.await);
            if let Ok((channel, vm_id)) = started.try_recv() {
                tasks.spawn(guest(channel, vm_id));
            }
        }
    })
}

/// One call of the API.
async fn obey(
    request: Request<Incoming>,
    machine: Shared,
    starts: tokio::sync::mpsc::Sender<(PathBuf, String)>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await;
    let body = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    let mut machine = machine.lock().unwrap_or_else(PoisonError::into_inner);
    match path.as_str() {
        "/vsock" => machine.channel = text("uds_path").into(),
        "/boot-source" => {
            let params = BootParams::from_cmdline(&text("boot_args"));
            machine.vm_id = params.map(|params| params.vm_id).unwrap_or_default();
        }
        "/actions" => {
            let started = (machine.channel.clone(), machine.vm_id.clone());
            // A machine is started once.
            drop(starts.try_send(started));
        }
        _ => {}
    }
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    Ok(answer)
}

/// Says that it serves, and answers whatever it is asked with an empty object.
async fn guest(channel: PathBuf, vm_id: String) -> Result<()> {
    let listener = UnixListener::bind(&channel)?;
    let ready = Ready {
        generation: GENERATION,
        fused_version: "none".into(),
        boot_id: format!("{vm_id}-boot"),
        vm_id,
        error: None,
    };
    let mut host = UnixStream::connect(vsock::listener_path(&channel, READY_PORT)).await?;
    let line = serde_json::to_string(&ready)? + "\n";
    host.write_all(line.as_bytes()).await?;
    let mut calls = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        calls.spawn(answer(stream));
        while calls.try_join_next().is_some() {}
    }
}

async fn answer(stream: UnixStream) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    stream.write_all(vsock::ok_line(1).as_bytes()).await?;
    let empty = async |_: Request<Incoming>| {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{}"))))
    };
    let serve = hyper::server::conn::http1::Builder::new();
    Ok(serve
        .serve_connection(TokioIo::new(stream), service_fn(empty))
        .await?)
}
