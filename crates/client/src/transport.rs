//! One request, one answer: headers, bounds, retry of refused connections.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Method, Response, redirect};
use serde::{Serialize, de::DeserializeOwned};
use url::Url;

use crate::resolve::SystemResolver;
use crate::{ApiError, BaseUrl, Error, Reason, Token};

/// Bound of an ordinary call, body included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Bound of establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer read (bytes): two exec streams of 8 MiB, every byte escaped.
const MAX_ANSWER: usize = 128 * 1024 * 1024;
/// How often a refused connection is tried again, and the pause before the first time.
const REFUSED_RETRIES: u32 = 3;
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How to reach an orchestrator.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its address.
    pub base_url: BaseUrl,
    /// Bearer token, if any.
    pub token: Option<Token>,
    /// `User-Agent` of every request.
    pub user_agent: String,
    /// Bound of an ordinary call.
    pub request_timeout: Duration,
    /// Whether calls are repeated when the connection is refused, as it is for a moment while a
    /// server restarts. Off for probes, which want the first answer.
    pub retry_refused: bool,
}

impl Options {
    /// Options with the default bounds.
    pub fn new(base_url: BaseUrl, token: Option<Token>, user_agent: impl Into<String>) -> Self {
        Self {
            base_url,
            token,
            user_agent: user_agent.into(),
            request_timeout: REQUEST_TIMEOUT,
            retry_refused: true,
        }
    }
}

/// A connection to one orchestrator. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base_url: BaseUrl,
    request_timeout: Duration,
    retry_refused: bool,
}

/// A request about to be sent.
#[derive(Debug)]
pub(crate) struct Call {
    method: Method,
    url: Url,
    body: Option<Vec<u8>>,
    timeout: Option<Duration>,
    headers: HeaderMap,
}

impl Call {
    /// Bounds the whole call; `None` leaves it open.
    pub(crate) fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Adds a header.
    pub(crate) fn header(mut self, name: &'static str, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Asks the server to answer before the work is done.
    pub(crate) fn in_background(self) -> Self {
        self.header("prefer", HeaderValue::from_static("respond-async"))
    }

    /// Adds query parameters: a struct, or pairs. What is `None` is left out.
    pub(crate) fn query(mut self, query: &impl Serialize) -> Result<Self, Error> {
        let mut pairs = self.url.query_pairs_mut();
        let written = query
            .serialize(serde_urlencoded::Serializer::new(&mut pairs))
            .map(|_| ());
        drop(pairs);
        written.map_err(|error| self.unwritable("a query", &error))?;
        if self.url.query() == Some("") {
            self.url.set_query(None);
        }
        Ok(self)
    }

    /// Sets the whole query, encoded already.
    pub(crate) fn raw_query(mut self, query: &str) -> Self {
        self.url.set_query(Some(query));
        self
    }

    /// Sets the JSON body.
    pub(crate) fn json(mut self, body: &impl Serialize) -> Result<Self, Error> {
        let bytes = serde_json::to_vec(body).map_err(|error| self.unwritable("JSON", &error))?;
        self.body = Some(bytes);
        Ok(self)
    }

    fn unwritable(&self, form: &str, error: &dyn std::error::Error) -> Error {
        Error::Decode {
            url: self.shown(),
            reason: format!("the request could not be written as {form}: {error}"),
        }
    }

    /// The address without its query, for messages.
    pub(crate) fn shown(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        url.to_string()
    }
}

impl Client {
    /// Prepares a client; nothing is sent.
    ///
    /// # Errors
    /// When the token cannot be sent in a header, or TLS cannot be set up (https only).
    pub fn new(options: Options) -> Result<Self, Error> {
        // Installing fails when a provider is there already, which serves as well.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        let mut headers = HeaderMap::new();
        if let Some(token) = options
            .token
            .as_ref()
            .filter(|token| !token.reveal().is_empty())
        {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.reveal()))
                .map_err(|_| Error::InvalidToken)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(options.user_agent)
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tls_info(true)
            .dns_resolver(SystemResolver);
        if !options.base_url.is_https() {
            // Without TLS the system's certificates need not be read, nor even exist.
            builder = builder.tls_certs_only([]);
        }
        if options.base_url.is_loopback() {
            builder = builder.no_proxy();
        }
        Ok(Self {
            http: builder
                .build()
                .map_err(|error| Error::Setup(chain(&error)))?,
            base_url: options.base_url,
            request_timeout: options.request_timeout,
            retry_refused: options.retry_refused,
        })
    }

    /// The orchestrator's address.
    #[must_use]
    pub fn base_url(&self) -> &BaseUrl {
        &self.base_url
    }

    /// Starts a request below the base URL; path segments are escaped here.
    pub(crate) fn call(&self, method: Method, segments: &[&str]) -> Result<Call, Error> {
        Ok(Call {
            method,
            url: self.base_url.join(segments)?,
            body: None,
            timeout: Some(self.request_timeout),
            headers: HeaderMap::new(),
        })
    }

    /// Starts a request for one of the actions that a resource has beside being read and deleted.
    pub(crate) fn act(&self, collection: &str, id: &str, action: &str) -> Result<Call, Error> {
        self.call(Method::POST, &["v1", collection, id])?
            .query(&[("action", action)])
    }

    /// Sends a call and reads its JSON answer.
    pub(crate) async fn fetch<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let url = call.shown();
        let response = self.send(call).await?;
        let body = read(response, &url).await?;
        decode(&body, &url)
    }

    /// Sends a call whose answer may have no content.
    pub(crate) async fn fetch_if_any<T: DeserializeOwned>(
        &self,
        call: Call,
    ) -> Result<Option<T>, Error> {
        let url = call.shown();
        let response = self.send(call).await?;
        if response.status() == reqwest::StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let body = read(response, &url).await?;
        decode(&body, &url).map(Some)
    }

    /// Sends a call whose answer has no body worth reading.
    pub(crate) async fn perform(&self, call: Call) -> Result<(), Error> {
        self.send(call).await.map(|_| ())
    }

    /// Sends a call; any answer but 2xx and 101 is an error.
    pub(crate) async fn send(&self, call: Call) -> Result<Response, Error> {
        let url = call.shown();
        let response = self.send_raw(call).await?;
        let status = response.status();
        if status.is_success() || status == reqwest::StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        if status.is_redirection() {
            let location = header(&response, LOCATION.as_str()).unwrap_or_default();
            return Err(Error::Redirected { url, location });
        }
        let request_id = header(&response, "x-request-id");
        let body = read(response, &url).await.unwrap_or_default();
        Err(ApiError::read(status, request_id, &body).into())
    }

    /// Sends a call and returns whatever answers.
    pub(crate) async fn send_raw(&self, call: Call) -> Result<Response, Error> {
        let retries = if self.retry_refused {
            REFUSED_RETRIES
        } else {
            0
        };
        let mut pause = REFUSED_PAUSE;
        for _ in 0..retries {
            match self.send_once(&call).await {
                Err(Error::Transport {
                    reason: Reason::Refused,
                    ..
                }) => {
                    tokio::time::sleep(jittered(pause)).await;
                    pause *= 2;
                }
                outcome => return outcome,
            }
        }
        self.send_once(&call).await
    }

    async fn send_once(&self, call: &Call) -> Result<Response, Error> {
        let mut request = self
            .http
            .request(call.method.clone(), call.url.clone())
            .headers(call.headers.clone());
        if let Some(timeout) = call.timeout {
            request = request.timeout(timeout);
        }
        if let Some(body) = &call.body {
            request = request
                .header("content-type", "application/json")
                .body(body.clone());
        }
        request.send().await.map_err(|error| Error::Transport {
            url: call.shown(),
            reason: Reason::of(&error),
        })
    }
}

/// A random moment in the second half of the pause, so that many clients do not come back as one.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

/// A header as text.
pub(crate) fn header(response: &Response, name: &str) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

/// Reads an answer to its end, bounded.
pub(crate) async fn read(mut response: Response, url: &str) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    loop {
        let chunk: Option<Bytes> = response.chunk().await.map_err(|error| Error::Transport {
            url: url.to_owned(),
            reason: Reason::of(&error),
        })?;
        let Some(chunk) = chunk else { return Ok(body) };
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(Error::TooLarge {
                url: url.to_owned(),
                limit: MAX_ANSWER,
            });
        }
        body.extend_from_slice(&chunk);
    }
}

/// Reads a JSON body.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8], url: &str) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Decode {
        url: url.to_owned(),
        reason: error.to_string(),
    })
}

/// An error with its sources, for failures that have no type of ours.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
