//! What the guest agent has logged since the boot, read back from the kernel's log.
//!
//! The kernel's log is a ring: a guest that fills it with lines of its own loses the oldest ones of
//! the agent. Whoever is root in the guest can write lines that look like the agent's; they are text
//! for people and nothing is decided by them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;
use tokio::io::unix::AsyncFd;

use super::error::ApiError;
use crate::sys;

const KERNEL_LOG: &str = "/dev/kmsg";
/// What every line of the agent begins with in the kernel's log.
const TAG: &str = "[fused] ";
/// Longest record that the kernel gives out.
const MAX_RECORD: usize = 8 * 1024;
/// Bytes that are gathered into one chunk.
const CHUNK: usize = 16 * 1024;

#[derive(Debug, Deserialize)]
pub(super) struct LogQuery {
    #[serde(default)]
    follow: String,
}

pub(super) async fn log(
    query: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let follow = query.is_ok_and(|Query(query)| matches!(query.follow.as_str(), "1" | "true"));
    let records = Records::open(Path::new(KERNEL_LOG), follow)
        .map_err(|error| ApiError::Internal(format!("cannot read {KERNEL_LOG}: {error}")))?;
    let chunks = stream::unfold(records, |mut records| async {
        let chunk = records.next().await?;
        Some((chunk.map(Bytes::from), records))
    });
    let text = [(CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((text, Body::from_stream(chunks)).into_response())
}

/// The agent's lines, from the oldest on.
#[derive(Debug)]
struct Records {
    log: AsyncFd<OwnedFd>,
    follow: bool,
}

impl Records {
    fn open(path: &Path, follow: bool) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let log = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self {
            log: sys::watch_fd(log)?,
            follow,
        })
    }

    /// The next lines; `None` when there are no more and nobody waits for them.
    async fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        let mut record = vec![0; MAX_RECORD];
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK {
            match rustix::io::read(self.log.get_ref(), &mut record) {
                Ok(0) => break,
                Ok(count) => chunk.extend(line(&record[..count]).unwrap_or_default()),
                // It was overwritten before it was read; the next one is there.
                Err(Errno::PIPE) => {}
                Err(Errno::AGAIN) => {
                    if !chunk.is_empty() || !self.follow {
                        break;
                    }
                    match self.log.readable().await {
                        Ok(mut ready) => ready.clear_ready(),
                        Err(error) => return Some(Err(error)),
                    }
                }
                Err(error) => return Some(Err(error.into())),
            }
        }
        (!chunk.is_empty()).then_some(Ok(chunk))
    }
}

/// A record of the agent's as a line: `[ seconds.micros] text`; `None` for anybody else's.
fn line(record: &[u8]) -> Option<Vec<u8>> {
    // priority,sequence,microseconds,flags[,…];text, then lines of key=value that begin with a space.
    let text = String::from_utf8_lossy(record);
    let (head, rest) = text.split_once(';')?;
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    let said = rest.lines().next()?.strip_prefix(TAG)?;
    let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
    Some(format!("[{seconds:5}.{rest:06}] {said}\n").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_agent_are_told_from_the_kernels() {
        let text =
            |record: &str| line(record.as_bytes()).map(|line| String::from_utf8(line).unwrap());
        assert_eq!(
            text("6,339,5140900,-;[fused] the guest is up\n").as_deref(),
            Some("[    5.140900] the guest is up\n")
        );
        assert_eq!(
            text("4,1,12,-,caller=T1;[fused] odd; but fine\n SUBSYSTEM=x\n").as_deref(),
            Some("[    0.000012] odd; but fine\n")
        );
        for other in [
            "6,339,5140900,-;virtio_blk virtio1: [vda]\n",
            "6,339,5140900,-;not at its begin: [fused] x\n",
            "nonsense",
            "6,1,x,-;[fused] no time\n",
            "",
        ] {
            assert_eq!(text(other), None, "{other:?}");
        }
    }

    /// A pipe behaves like the kernel's log in what matters: reads do not block, and it becomes
    /// readable. Two records that one read returns are one record here.
    #[tokio::test]
    async fn a_follower_gets_what_is_logged_later() {
        use std::io::Write as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let mut records = Records::open(&path, true).unwrap();
        let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(b"6,1,1000000,-;[fused] first\n").unwrap();
        let first = records.next().await.unwrap().unwrap();
        assert_eq!(first, b"[    1.000000] first\n");
        let mut next = std::pin::pin!(records.next());
        assert!(futures_util::poll!(&mut next).is_pending());
        writer.write_all(b"6,2,2000000,-;[fused] second\n").unwrap();
        assert_eq!(next.await.unwrap().unwrap(), b"[    2.000000] second\n");
    }
}
