//! Event streams: how long an event takes to all who watch, and what each of them weighs.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use http::{Method, StatusCode};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::load::{Job, Target};
use crate::report::{Budget, Report};
use crate::startup::{Engine, Plane};

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
    once(plane, Method::POST, "/v1/environments", StatusCode::CREATED).await?;
    let before = plane.resident_mib().await?;
    let mut readers = open(plane, count).await?;
    let each = (plane.resident_mib().await? - before) * 1024.0 / f64::from(u32::try_from(count)?);
    report.add(
        GROUP,
        format!("{count} subscribers, each"),
        each,
        "KiB",
        Budget::AtMost(20.0),
    );

    let start = Instant::now();
    let mut waiting = JoinSet::new();
    while let Some(reader) = readers.pop() {
        waiting.spawn(async move { reader.until("\"destroyed\"").await.map(drop) });
    }
    let delete = once(
        plane,
        Method::DELETE,
        "/v1/environments/fuse-watched",
        StatusCode::NO_CONTENT,
    );
    delete.await?;
    while let Some(ended) = waiting.join_next().await {
        ended??;
    }
    report.add(
        GROUP,
        format!("a destroy with both its events, to {count} subscribers"),
        start.elapsed().as_secs_f64() * 1_000.0,
        "ms",
        Budget::AtMost(budget),
    );
    Ok(())
}

async fn once(plane: &Plane, method: Method, path: &str, expected: StatusCode) -> Result<()> {
    let path = path.to_owned();
    let job = Job {
        target: Target::Tcp(plane.address()),
        token: plane.token().to_owned(),
        request: std::sync::Arc::new(move |_| {
            let body = json!({"task_id": "watched"});
            (method.clone(), path.clone(), body.to_string())
        }),
        in_background: false,
        expected,
    };
    job.run(1, 1).await.map(drop)
}

/// Subscribes so often and waits until each has its first event.
async fn open(plane: &Plane, count: usize) -> Result<Vec<Reader>> {
    let mut opening = JoinSet::new();
    let mut readers = Vec::with_capacity(count);
    for started in 0..count {
        if started >= OPENING
            && let Some(opened) = opening.join_next().await
        {
            readers.push(opened??);
        }
        opening.spawn(Reader::open(plane.address(), plane.token().to_owned()));
    }
    while let Some(opened) = opening.join_next().await {
        readers.push(opened??);
    }
    Ok(readers)
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
