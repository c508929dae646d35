//! Plain HTTP and JSON, for the orchestrator and the host agent alike.
//!
//! Written against the documented contract and not on the product's own client, so that a mistake shared by server
//! and client shows.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::{Method, StatusCode, header};
use serde_json::Value;

/// Longest wait for one answer; creates boot a guest.
const REQUEST_DEADLINE: Duration = Duration::from_secs(180);

/// One server and the token to use there.
#[derive(Clone)]
pub struct Api {
    base: String,
    token: Option<String>,
    http: reqwest::Client,
}

// By hand: the token stays out of test output.
impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

/// An answer, whatever its status.
#[derive(Debug)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Response headers.
    pub headers: header::HeaderMap,
    /// Body as sent.
    pub body: Vec<u8>,
    what: String,
}

impl Api {
    /// A client for `base` (scheme, host, port). Certificates are not checked: guests sign their own.
    ///
    /// # Errors
    /// When the HTTP client cannot be built.
    pub fn new(base: impl Into<String>, token: Option<&str>) -> Result<Self> {
        // A second install is refused and means the same provider is already there.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(REQUEST_DEADLINE)
            .tls_danger_accept_invalid_certs(true)
            .no_proxy()
            .build()
            .context("build an HTTP client")?;
        Ok(Self {
            base: base.into(),
            token: token.map(str::to_owned),
            http,
        })
    }

    /// Base URL.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The same server with another token.
    #[must_use]
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self {
            token: token.map(str::to_owned),
            ..self.clone()
        }
    }

    /// Sends one request.
    ///
    /// # Errors
    /// On transport failure only; see [`Reply::expect`] for statuses.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply> {
        let what = format!("{method} {}{path}", self.base);
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.with_context(|| what.clone())?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = response
            .bytes()
            .await
            .with_context(|| format!("{what}: body"))?
            .to_vec();
        Ok(Reply {
            status,
            headers,
            body,
            what,
        })
    }

    /// `GET path`.
    ///
    /// # Errors
    /// On transport failure.
    pub async fn get(&self, path: &str) -> Result<Reply> {
        self.send(Method::GET, path, None).await
    }

    /// `POST path` with a JSON body.
    ///
    /// # Errors
    /// On transport failure.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// `DELETE path`.
    ///
    /// # Errors
    /// On transport failure.
    pub async fn delete(&self, path: &str) -> Result<Reply> {
        self.send(Method::DELETE, path, None).await
    }

    /// Opens the event stream of an environment.
    ///
    /// # Errors
    /// When the server does not answer 200 with an event stream.
    pub async fn events(&self, id: &str) -> Result<Events> {
        let url = format!("{}/v1/environments/{id}/events", self.base);
        let mut request = self
            .http
            .get(&url)
            .header(header::ACCEPT, "text/event-stream");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.with_context(|| format!("GET {url}"))?;
        if response.status() != StatusCode::OK {
            bail!(
                "GET {url}: {} {}",
                response.status(),
                response.text().await.unwrap_or_default()
            );
        }
        Ok(Events {
            response,
            buffer: Vec::new(),
            raw: Vec::new(),
        })
    }
}

impl Reply {
    /// Fails, with the body, unless the status is `status`.
    ///
    /// # Errors
    /// On any other status.
    pub fn expect(self, status: u16) -> Result<Self> {
        if self.status != status {
            bail!(
                "{}: {} (expected {status}): {}",
                self.what,
                self.status,
                self.text()
            );
        }
        Ok(self)
    }

    /// Body as JSON.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("{}: not JSON: {}", self.what, self.text()))
    }

    /// Body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// `error.code` and `error.message` of the orchestrator's envelope.
    ///
    /// # Errors
    /// When the body is not the envelope.
    pub fn error(&self) -> Result<(String, String)> {
        let body = self.json()?;
        let field = |name: &str| body["error"][name].as_str().map(str::to_owned);
        field("code")
            .zip(field("message"))
            .with_context(|| format!("{}: no error envelope: {body}", self.what))
    }
}

/// An open event stream.
#[derive(Debug)]
pub struct Events {
    response: reqwest::Response,
    buffer: Vec<u8>,
    raw: Vec<u8>,
}

impl Events {
    /// The next event's data, or `None` when the server has closed the stream.
    ///
    /// # Errors
    /// When none comes within `deadline`, the transport fails or the data is not JSON.
    pub async fn next(&mut self, deadline: Duration) -> Result<Option<Value>> {
        tokio::time::timeout(deadline, self.read_event())
            .await
            .with_context(|| format!("no event within {deadline:?}"))?
    }

    /// Events up to and including the first one whose state is one of `states`, or to the end of the stream.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn until_state(&mut self, states: &[&str], deadline: Duration) -> Result<Vec<Value>> {
        let mut seen = Vec::new();
        while let Some(event) = self.next(deadline).await? {
            let done = event["state"]
                .as_str()
                .is_some_and(|state| states.contains(&state));
            seen.push(event);
            if done {
                break;
            }
        }
        Ok(seen)
    }

    /// Everything received so far, byte for byte.
    #[must_use]
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    async fn read_event(&mut self) -> Result<Option<Value>> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let block = String::from_utf8(block).context("event is not UTF-8")?;
                let data: String = block
                    .lines()
                    .filter_map(|line| line.strip_prefix("data: "))
                    .collect();
                if !data.is_empty() {
                    return Ok(Some(
                        serde_json::from_str(&data)
                            .with_context(|| format!("event data: {data}"))?,
                    ));
                }
            }
            let Some(chunk) = self.response.chunk().await.context("event stream")? else {
                return Ok(None);
            };
            self.raw.extend_from_slice(&chunk);
            self.buffer.extend_from_slice(&chunk);
        }
    }
}
