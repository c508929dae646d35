//! The event stream of one environment, kept alive across dropped connections.
//!
//! ```text
//!            first event                    clean or broken end without a terminal event
//! (connect) ───────────▶ Streaming ───────────────────────────────▶ Reconnecting
//!     ▲                      │ terminal event                          │  │  the server answers,
//!     │                      ▼                                         │  │  but not with a stream
//!     └──────────────────  Ended  ◀── 404: the record is gone ─────────┘  ▼
//!              (with Last-Event-ID, jittered back-off)                 Polling ── record gone ──▶ Ended
//! ```
//!
//! Invariants: an event is delivered once (a replay by `Last-Event-ID` has no overlap, and the
//! snapshot that a server sends instead is dropped when it repeats the state already seen); silence
//! is bounded, because the server comments every 15 s.

use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use eventsource_stream::{Event as SseEvent, Eventsource as _};
use fuse_wire_api::{Environment, Event, KIND_STATE};
use futures_util::{Stream, StreamExt as _, stream};
use reqwest::header::HeaderValue;
use reqwest::{Method, Response};

use crate::transport::{header, jittered};
use crate::{Client, Error, Reason};

/// Longest silence on a stream: three keep-alive intervals.
const IDLE: Duration = Duration::from_secs(45);
/// First and longest pause before connecting again.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(250);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Streams in a row that end without an event before the stream is given up for polling.
const BARREN_LIMIT: u32 = 4;
/// How often the record is read when there is no stream.
const POLL_EVERY: Duration = Duration::from_secs(2);
/// How long the server may be away before the wait is given up.
pub(crate) const AWAY_LIMIT: Duration = Duration::from_secs(180);

pub(crate) type Records = Pin<Box<dyn Stream<Item = Result<SseEvent, String>> + Send>>;

/// Events of one environment, in order. Made by [`Client::events`].
pub struct EventStream {
    client: Client,
    id: String,
    mode: Mode,
    last_event_id: Option<String>,
    last_state: Option<(String, String)>,
    /// A snapshot may repeat what was seen before the connection was lost.
    resumed: bool,
    /// Streams in a row that brought nothing.
    barren: u32,
    pause: Duration,
    away_since: Option<Instant>,
}

enum Mode {
    Connecting,
    Streaming(Records),
    Polling,
    Ended,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream")
            .field("id", &self.id)
            .field("last_state", &self.last_state)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Opens the event stream of an environment. The first event is its current state.
    ///
    /// # Errors
    /// When the environment is unknown, or the server refuses or cannot be reached at all.
    pub async fn events(&self, id: &str) -> Result<EventStream, Error> {
        let mut events = EventStream {
            client: self.clone(),
            id: id.to_owned(),
            mode: Mode::Connecting,
            last_event_id: None,
            last_state: None,
            resumed: false,
            barren: 0,
            pause: FIRST_PAUSE,
            away_since: None,
        };
        events.mode = events.connect().await?;
        Ok(events)
    }
}

impl EventStream {
    /// The next event; `None` after the terminal one, or when the record is gone without one.
    ///
    /// # Errors
    /// When the server refuses the stream, or stays away for too long.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event: an event is taken off the stream in the same poll in
    /// which it is returned.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            match &mut self.mode {
                Mode::Ended => return Ok(None),
                Mode::Streaming(records) => match records.next().await {
                    Some(Ok(record)) => {
                        if let Some(event) = self.accept(&record) {
                            return Ok(Some(event));
                        }
                    }
                    Some(Err(_)) | None => self.lose(),
                },
                Mode::Connecting => {
                    tokio::time::sleep(jittered(self.pause)).await;
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                    match self.connect().await {
                        Ok(mode) => self.mode = mode,
                        Err(error) => self.failed(error)?,
                    }
                }
                Mode::Polling => {
                    tokio::time::sleep(POLL_EVERY).await;
                    match self.client.environment(&self.id).await {
                        Ok(environment) => {
                            self.away_since = None;
                            if let Some(event) = self.observe(&environment) {
                                return Ok(Some(event));
                            }
                        }
                        Err(error) => self.failed(error)?,
                    }
                }
            }
        }
    }

    async fn connect(&self) -> Result<Mode, Error> {
        let path = ["v1", "environments", &self.id, "events"];
        let records = open_stream(&self.client, &path, self.last_event_id.as_deref()).await?;
        // Something in between that buffers or rewrites streams leaves the record itself to read.
        Ok(records.map_or(Mode::Polling, Mode::Streaming))
    }

    /// Turns a record into an event to deliver; `None` for one that says nothing new.
    fn accept(&mut self, record: &SseEvent) -> Option<Event> {
        // A record that cannot be read is of a kind this client does not know.
        let event: Event = serde_json::from_str(&record.data).ok()?;
        self.barren = 0;
        self.pause = FIRST_PAUSE;
        self.away_since = None;
        if !record.id.is_empty() {
            self.last_event_id = Some(record.id.clone());
        }
        if event.event != KIND_STATE {
            return Some(event);
        }
        let state = (event.state.clone(), event.url.clone());
        let repeated =
            std::mem::take(&mut self.resumed) && self.last_state.as_ref() == Some(&state);
        self.last_state = Some(state);
        if event.is_terminal() {
            self.mode = Mode::Ended;
        }
        (!repeated).then_some(event)
    }

    /// The stream ended before its terminal event.
    fn lose(&mut self) {
        self.resumed = true;
        self.barren += 1;
        self.mode = if self.barren >= BARREN_LIMIT {
            Mode::Polling
        } else {
            Mode::Connecting
        };
    }

    /// Decides whether a failed attempt ends the wait.
    fn failed(&mut self, error: Error) -> Result<(), Error> {
        if error.is_not_found() {
            // The record goes before its terminal event is published; the event is lost to us.
            self.mode = Mode::Ended;
            return Ok(());
        }
        let since = *self.away_since.get_or_insert_with(Instant::now);
        if !error.is_retryable() || since.elapsed() > AWAY_LIMIT {
            return Err(error);
        }
        Ok(())
    }

    /// Makes an event of a record that was read, when it says something new.
    fn observe(&mut self, environment: &Environment) -> Option<Event> {
        let state = (environment.state.clone(), environment.url.clone());
        if self.last_state.as_ref() == Some(&state) {
            return None;
        }
        self.last_state = Some(state);
        let mut event = Event::state(
            String::new(),
            environment.id.clone(),
            &environment.state,
            environment.updated_at,
        );
        event.url.clone_from(&environment.url);
        event.error.clone_from(&environment.error);
        Some(event)
    }
}

/// Opens an event stream behind `last_event_id`; `None` when what answers is none.
pub(crate) async fn open_stream(
    client: &Client,
    path: &[&str],
    last_event_id: Option<&str>,
) -> Result<Option<Records>, Error> {
    let mut call = client
        .call(Method::GET, path)?
        // The stream is open-ended; its silence is bounded instead.
        .timeout(None)
        .header("accept", HeaderValue::from_static("text/event-stream"));
    if let Some(last) = last_event_id
        && let Ok(value) = HeaderValue::from_str(last)
    {
        call = call.header("last-event-id", value);
    }
    let timed_out = |_| Error::Transport {
        url: client.base_url().to_string(),
        reason: Reason::TimedOut,
    };
    let response = tokio::time::timeout(IDLE, client.send(call)).await;
    let response = response.map_err(timed_out)??;
    let is_stream = header(&response, "content-type")
        .is_some_and(|value| value.starts_with("text/event-stream"));
    Ok(is_stream.then(|| records(response)))
}

/// Parses an answer as server-sent events; silence longer than [`IDLE`] ends it.
pub(crate) fn records(response: Response) -> Records {
    let chunks = stream::unfold(Some(response), |response| async move {
        let mut response = response?;
        let chunk: Result<Bytes, String> = match tokio::time::timeout(IDLE, response.chunk()).await
        {
            Ok(Ok(Some(bytes))) => return Some((Ok(bytes), Some(response))),
            Ok(Ok(None)) => return None,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("silent for too long".to_owned()),
        };
        Some((chunk, None))
    });
    Box::pin(
        // Some who read it ask again after the end.
        chunks
            .fuse()
            .eventsource()
            .map(|record| record.map_err(|error| error.to_string())),
    )
}
