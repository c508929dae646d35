//! The part of podman's API that is needed here, over its socket.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{Error, PROJECT};

/// Bound of a call that only looks. Guests may be slow, and busy with the start of what is looked at.
const LOOK: Duration = Duration::from_secs(60);
/// Longest answer in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Since podman 4.0, and still served by podman 5.
const BASE: &str = "/v4.0.0/libpod";
/// Label of a container with the name of its service.
const SERVICE_LABEL: &str = "com.docker.compose.service";
/// Lines of a container's output that are shown when it failed.
const TAIL_LINES: usize = 20;

/// A client.
#[derive(Debug, Clone)]
pub(super) struct Podman {
    socket: PathBuf,
}

/// A container as a list shows it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Listed {
    pub(super) id: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    labels: Option<HashMap<String, String>>,
}

impl Listed {
    pub(super) fn is_running(&self) -> bool {
        self.state == "running"
    }

    /// The service that it is a container of.
    pub(super) fn service(&self) -> Option<&str> {
        let labels = self.labels.as_ref()?;
        labels.get(SERVICE_LABEL).map(String::as_str)
    }
}

/// A container in detail.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Container {
    pub(super) state: State,
    pub(super) config: Config,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct State {
    pub(super) status: String,
    pub(super) exit_code: i32,
    /// Of its main process; 0 when there is none.
    pub(super) pid: i32,
    health: Option<Health>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Health {
    status: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Config {
    healthcheck: Option<Healthcheck>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Healthcheck {
    test: Option<Vec<String>>,
    /// Nanoseconds.
    interval: u64,
}

impl Container {
    /// `starting`, `healthy`, `unhealthy`; empty for one that does not tell.
    pub(super) fn health(&self) -> &str {
        let health = self.state.health.as_ref();
        health.map_or("", |health| health.status.as_str())
    }

    pub(super) fn is_running(&self) -> bool {
        self.state.status == "running"
    }

    /// Whether it ran and does no more.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state.status.as_str(), "exited" | "stopped" | "dead")
    }

    /// How often its health is to be checked, if it has a check.
    pub(super) fn check_interval(&self) -> Option<Duration> {
        /// What is meant when nothing is said.
        const USUAL: Duration = Duration::from_secs(30);
        let check = self.config.healthcheck.as_ref()?;
        let test = check.test.as_ref()?.first()?;
        let interval = Duration::from_nanos(check.interval);
        (test != "NONE").then(|| if interval.is_zero() { USUAL } else { interval })
    }
}

impl Podman {
    pub(super) fn at(socket: &str) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    /// Whether it answers.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.call(Method::GET, "/_ping", LOOK).await.map(drop)
    }

    /// Containers, those that ended too; of the project, or all.
    pub(super) async fn list(&self, of_project: bool) -> Result<Vec<Listed>, Error> {
        // {"label":["com.docker.compose.project=…"]}
        let filter = format!(
            "&filters=%7B%22label%22%3A%5B%22com.docker.compose.project%3D{PROJECT}%22%5D%7D"
        );
        let filter = if of_project { filter.as_str() } else { "" };
        let path = format!("{BASE}/containers/json?all=true{filter}");
        let listed: Option<Vec<Listed>> = self.json(&path).await?;
        Ok(listed.unwrap_or_default())
    }

    pub(super) async fn inspect(&self, id: &str) -> Result<Container, Error> {
        self.json(&format!("{BASE}/containers/{id}/json")).await
    }

    /// Asks a container to stop, and ends it after `patience`.
    pub(super) async fn stop(&self, id: &str, patience: Duration) -> Result<(), Error> {
        let path = format!("{BASE}/containers/{id}/stop?timeout={}", patience.as_secs());
        let limit = patience + Duration::from_secs(5);
        self.call(Method::POST, &path, limit).await.map(drop)
    }

    /// Runs the health check of a container once.
    pub(super) async fn check_health(&self, id: &str, limit: Duration) -> Result<(), Error> {
        let path = format!("{BASE}/containers/{id}/healthcheck");
        self.call(Method::GET, &path, limit).await.map(drop)
    }

    /// The end of what a container printed, both streams.
    pub(super) async fn tail(&self, id: &str) -> Result<String, Error> {
        let path = format!("{BASE}/containers/{id}/logs?stdout=true&stderr=true&tail={TAIL_LINES}");
        let answer = self.call(Method::GET, &path, LOOK).await?;
        Ok(String::from_utf8_lossy(&unframed(&answer)).into_owned())
    }

    async fn json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let answer = self.call(Method::GET, path, LOOK).await?;
        serde_json::from_slice(&answer).map_err(|e| Error::Api(format!("{path}: {e}")))
    }

    async fn call(&self, method: Method, path: &str, limit: Duration) -> Result<Bytes, Error> {
        let failed = |why: String| Error::Api(format!("{path}: {why}"));
        match timeout(limit, self.exchange(method, path)).await {
            Ok(Ok((status, body))) if status < 400 => Ok(body),
            Ok(Ok((status, body))) => Err(failed(format!(
                "status {status}: {}",
                String::from_utf8_lossy(&body)
            ))),
            Ok(Err(why)) => Err(failed(why)),
            Err(_) => Err(failed(format!("no answer within {} s", limit.as_secs()))),
        }
    }

    async fn exchange(&self, method: Method, path: &str) -> Result<(u16, Bytes), String> {
        let stream = UnixStream::connect(&self.socket).await;
        let stream = stream.map_err(|e| format!("cannot connect: {e}"))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|e| e.to_string())?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "podman")
            .body(Empty::<Bytes>::new())
            .map_err(|e| e.to_string())?;
        let answer = async {
            let answer = sender.send_request(request).await;
            let answer = answer.map_err(|e| e.to_string())?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|e| e.to_string())?;
            Ok((status, body.to_bytes()))
        };
        let mut answer = pin!(answer);
        let mut connection = pin!(connection);
        // One that ends first has delivered everything that it will.
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            _ended = &mut connection => answer.await,
        }
    }
}

/// A container's output without the frames that it comes in: stream, three zeros, length, content. What is not framed,
/// that of a container with a terminal, is left as it is.
fn unframed(answer: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut rest = answer;
    while let Some((head, body)) = rest.split_at_checked(8) {
        let &[0..=2, 0, 0, 0, a, b, c, d] = head else {
            break;
        };
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let (content, behind) = body.split_at(length.min(body.len()));
        text.extend_from_slice(content);
        rest = behind;
    }
    text.extend_from_slice(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_comes_out_of_its_frames() {
        let framed = b"\x01\0\0\0\0\0\0\x03ab\n\x02\0\0\0\0\0\0\x02c\n";
        assert_eq!(unframed(framed), b"ab\nc\n");
        assert_eq!(
            unframed(b"plain text of a terminal\n"),
            b"plain text of a terminal\n"
        );
        assert_eq!(unframed(b"\x01\0\0\0\0\0\0\x09cut"), b"cut");
        assert_eq!(unframed(b""), b"");
    }

    #[test]
    fn what_podman_says_of_a_container() {
        let text = r#"{"Id":"x","State":{"Status":"running","ExitCode":0,"Health":{"Status":"healthy","Log":[]}},
            "Config":{"Healthcheck":{"Test":["CMD-SHELL","true"],"Interval":2000000000}}}"#;
        let container: Container = serde_json::from_str(text).unwrap();
        assert!(container.is_running() && !container.has_ended());
        assert_eq!(container.health(), "healthy");
        assert_eq!(container.check_interval(), Some(Duration::from_secs(2)));
        let bare: Container =
            serde_json::from_str(r#"{"State":{"Status":"exited","ExitCode":3},"Config":{}}"#)
                .unwrap();
        assert!(bare.has_ended());
        assert_eq!((bare.state.exit_code, bare.health()), (3, ""));
        assert_eq!(bare.check_interval(), None);
    }
}
