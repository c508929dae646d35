//! A load generator: so many requests in flight on as many kept-alive connections.
//!
//! It shares the machine with what it measures, so it does as little as it can: no pool, no redirects, bodies are
//! read and dropped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use fuse_wire_guest::{CONTROL_PORT, vsock};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use crate::stats::Series;

/// Where requests go.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// A program of Fuse.
    Tcp(SocketAddr),
    /// The control API in a guest, through the vsock socket of its VMM.
    Guest(PathBuf),
}

/// One kind of request, repeated with a running number.
#[derive(Clone)]
pub(crate) struct Job {
    /// Where to.
    pub(crate) target: Target,
    /// Bearer token; empty for none.
    pub(crate) token: String,
    /// Method, path and JSON body (may be empty) of request number n.
    pub(crate) request: Arc<dyn Fn(usize) -> (Method, String, String) + Send + Sync>,
    /// Ask for an answer before the work is done (`Prefer: respond-async`).
    pub(crate) in_background: bool,
    /// The only status that counts as success.
    pub(crate) expected: StatusCode,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Requests per second over the whole run.
    pub(crate) rate: f64,
    /// Latency of each request.
    pub(crate) latency: Series,
}

impl Job {
    /// Sends `count` requests, `in_flight` at a time.
    ///
    /// # Errors
    /// When a connection breaks or any answer has an unexpected status: figures of failures mean nothing.
    pub(crate) async fn run(&self, count: usize, in_flight: usize) -> Result<Outcome> {
        let next = Arc::new(AtomicUsize::new(0));
        let mut workers = JoinSet::new();
        let start = Instant::now();
        for _ in 0..in_flight {
            let (job, next) = (self.clone(), Arc::clone(&next));
            workers.spawn(async move { job.worker(&next, count).await });
        }
        let mut samples = Vec::with_capacity(count);
        while let Some(worker) = workers.join_next().await {
            samples.extend(worker.context("a worker panicked")??);
        }
        let seconds = start.elapsed().as_secs_f64();
        let done = u32::try_from(samples.len()).context("too many requests")?;
        Ok(Outcome {
            rate: f64::from(done) / seconds,
            latency: Series::new(samples),
        })
    }

    async fn worker(&self, next: &AtomicUsize, count: usize) -> Result<Vec<Duration>> {
        let mut driver = JoinSet::new();
        let mut sender = self.connect(&mut driver).await?;
        let mut samples = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(samples);
            }
            let start = Instant::now();
            self.send(&mut sender, number).await?;
            samples.push(start.elapsed());
        }
    }

    async fn connect(&self, driver: &mut JoinSet<()>) -> Result<SendRequest<Full<Bytes>>> {
        match &self.target {
            Target::Tcp(address) => {
                let stream = TcpStream::connect(address)
                    .await
                    .with_context(|| format!("connect to {address}"))?;
                stream.set_nodelay(true)?;
                handshake(stream, driver).await
            }
            Target::Guest(socket) => {
                let stream = UnixStream::connect(socket)
                    .await
                    .with_context(|| format!("connect to {}", socket.display()))?;
                let mut stream = BufReader::new(stream);
                stream
                    .write_all(vsock::connect_line(CONTROL_PORT).as_bytes())
                    .await?;
                let mut line = String::new();
                stream.read_line(&mut line).await?;
                ensure!(
                    line.starts_with("OK "),
                    "{} answered {line:?}",
                    socket.display()
                );
                handshake(stream, driver).await
            }
        }
    }

    async fn send(&self, sender: &mut SendRequest<Full<Bytes>>, number: usize) -> Result<()> {
        let (method, path, body) = (self.request)(number);
        let what = format!("{method} {path}");
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "bench")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/json");
        if self.in_background {
            request = request.header("prefer", "respond-async");
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let response = sender
            .send_request(request)
            .await
            .with_context(|| what.clone())?;
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .with_context(|| what.clone())?
            .to_bytes();
        if status != self.expected {
            bail!(
                "{what}: {status} (expected {}): {}",
                self.expected,
                String::from_utf8_lossy(&body)
            );
        }
        Ok(())
    }
}

async fn handshake<T>(stream: T, driver: &mut JoinSet<()>) -> Result<SendRequest<Full<Bytes>>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the sender; its error shows as the request's.
    driver.spawn(async move { drop(connection.await) });
    Ok(sender)
}
