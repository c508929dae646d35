//! Event streams: how long an event takes to all who watch, and what each of them weighs. Beside it a bare server does
//! the same, so that the ratio says what is ours.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fuse_testkit::{Daemon, free_port};
use http::{Method, StatusCode};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::fan_out;
use crate::load::{Job, Target};
use crate::report::{Budget, Report};
use crate::startup::{Engine, Plane, resident_mib};

const GROUP: &str = "events";
/// Connections that are opened at a time: a listener's backlog is not what is measured.
const OPENING: usize = 64;
/// File descriptors beside those of the subscribers.
const SPARE_FILES: u64 = 256;

/// 1,000 and 10,000 subscribers of one environment, on one process.
pub(crate) async fn measure(report: &mut Report, quick: bool) -> Result<()> {
    let counts: &[(usize, f64)] = if quick {
        &[(100, 25.0)]
    } else {
        &[(1_000, 25.0), (10_000, 250.0)]
    };
    for (count, budget) in counts {
        if !may_open(*count)? {
            let what = format!("{count} subscribers");
            report.skipped(GROUP, what, "the limit of open files is too low");
            continue;
        }
        // The orchestrator inherits the limit, so it is started after that is set.
        let plane = Plane::start(Engine::File).await?;
        let plane = plane.context("SQLite is always there")?;
        round(report, &plane, *count, *budget).await?;
        plane.stop().await?;
    }
    Ok(())
}

/// Raises the limit of open files as far as `count` connections need it.
fn may_open(count: usize) -> Result<bool> {
    let needed = u64::try_from(count)? + SPARE_FILES;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < needed && hard >= needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed, hard)?;
    }
    Ok(hard >= needed)
}

async fn round(report: &mut Report, plane: &Plane, count: usize, budget: f64) -> Result<()> {
    let (bare, bare_each) = bare(count).await?;
    let server = Server {
        address: plane.address(),
        token: plane.token().to_owned(),
    };
    let environments = "/v1/environments";
    let watched = "/v1/environments/fuse-watched";
    server
        .call(Method::POST, environments, StatusCode::CREATED)
        .await?;
    let before = plane.resident_mib().await?;
    let readers = server.subscribe(count).await?;
    let each = (plane.resident_mib().await? - before) * 1024.0 / f64::from(u32::try_from(count)?);
    report.add(
        GROUP,
        format!("{count} subscribers, each"),
        each,
        "KiB",
        Budget::AtMost(20.0),
    );

    let drain = format!("{watched}?action=drain");
    let drained = server.call(Method::POST, &drain, StatusCode::OK);
    let (readers, ours) = all_read(readers, "\"draining\"", drained).await?;
    let destroyed = server.call(Method::DELETE, watched, StatusCode::NO_CONTENT);
    let (readers, last) = all_read(readers, "\"destroyed\"", destroyed).await?;
    drop(readers);
    let budget = Budget::AtMost(budget);
    let what = format!("an event to {count} subscribers");
    report.add(GROUP, what, ms(ours), "ms", budget);
    let what = format!("a destroy with both its events, to {count} subscribers");
    report.add(GROUP, what, ms(last), "ms", budget);
    let what = format!("an event to {count} subscribers of a bare server");
    report.add(GROUP, what, ms(bare), "ms", Budget::None);
    let what = format!("{count} subscribers of a bare server, each");
    report.add(GROUP, what, bare_each, "KiB", Budget::None);
    Ok(())
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// The same on a server that does nothing else: an event to all, and the memory of each in KiB.
async fn bare(count: usize) -> Result<(Duration, f64)> {
    let server = Server {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)),
        token: String::new(),
    };
    let dir = tempfile::tempdir()?;
    let mut daemon = Daemon::spawn(
        "the bare server",
        &std::env::current_exe()?,
        &[fan_out::ARGUMENT, &server.address.to_string()],
        &[],
        &dir.path().join("log"),
    )?;
    while TcpStream::connect(server.address).await.is_err() {
        daemon.still_runs()?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let pid = daemon.pid().context("the bare server does not run")?;
    let before = resident_mib(pid)?;
    let readers = server.subscribe(count).await?;
    let each = (resident_mib(pid)? - before) * 1024.0 / f64::from(u32::try_from(count)?);
    let fired = server.call(Method::POST, "/", StatusCode::OK);
    let (_readers, took) = all_read(readers, "\"draining\"", fired).await?;
    daemon.kill().await?;
    Ok((took, each))
}

/// Who serves the streams.
struct Server {
    address: SocketAddr,
    token: String,
}

impl Server {
    async fn call(&self, method: Method, path: &str, expected: StatusCode) -> Result<()> {
        let path = path.to_owned();
        let job = Job {
            target: Target::Tcp(self.address),
            token: self.token.clone(),
            request: Arc::new(move |_| {
                let body = json!({"task_id": "watched"});
                (method.clone(), path.clone(), body.to_string())
            }),
            in_background: false,
            expected,
        };
        job.run(1, 1).await.map(drop)
    }

    /// Subscribes so often and waits until each has its first event.
    async fn subscribe(&self, count: usize) -> Result<Vec<Reader>> {
        let mut opening = JoinSet::new();
        let mut readers = Vec::with_capacity(count);
        for started in 0..count {
            if started >= OPENING
                && let Some(opened) = opening.join_next().await
            {
                readers.push(opened??);
            }
            opening.spawn(Reader::open(self.address, self.token.clone()));
        }
        while let Some(opened) = opening.join_next().await {
            readers.push(opened??);
        }
        Ok(readers)
    }
}

/// How long it takes from `trigger` until all have read `text`. Readers wait before the clock starts, and close behind
/// the last: what is measured is the way of the event.
async fn all_read(
    readers: Vec<Reader>,
    text: &'static str,
    trigger: impl Future<Output = Result<()>>,
) -> Result<(Vec<Reader>, Duration)> {
    let left = Arc::new((AtomicUsize::new(readers.len()), Notify::new()));
    let mut reading = JoinSet::new();
    for reader in readers {
        let left = Arc::clone(&left);
        reading.spawn(async move {
            if left.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                left.1.notify_one();
            }
            let reader = reader.until(text).await?;
            anyhow::Ok((reader, Instant::now()))
        });
    }
    left.1.notified().await;
    let start = Instant::now();
    trigger.await?;
    let (mut readers, mut last) = (Vec::with_capacity(reading.len()), start);
    while let Some(read) = reading.join_next().await {
        let (reader, at) = read??;
        last = last.max(at);
        readers.push(reader);
    }
    Ok((readers, last - start))
}

/// One subscriber; it keeps no more than it has to search.
struct Reader {
    stream: TcpStream,
    seen: Vec<u8>,
}

impl Reader {
    async fn open(address: SocketAddr, token: String) -> Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!(
            "GET /v1/environments/fuse-watched/events HTTP/1.1\r\nhost: bench\r\n\
             authorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let reader = Self {
            stream,
            seen: Vec::new(),
        };
        reader.until("\"running\"").await
    }

    /// Reads until `text` has come.
    async fn until(mut self, text: &str) -> Result<Self> {
        let mut chunk = [0; 1024];
        while !self
            .seen
            .windows(text.len())
            .any(|part| part == text.as_bytes())
        {
            let read = self.stream.read(&mut chunk).await?;
            ensure!(read > 0, "a stream ended before {text}");
            self.seen.extend_from_slice(&chunk[..read]);
        }
        self.seen = Vec::new();
        Ok(self)
    }
}
