//! The event stream of the whole fleet, kept alive across dropped connections. Needs the master
//! token.

use std::time::{Duration, Instant};

use fuse_wire_api::Event;

use crate::events::{AWAY_LIMIT, FIRST_PAUSE, LONGEST_PAUSE, Records, open_stream};
use crate::transport::jittered;
use crate::{Client, Error};

/// Events of all environments, in order. Made by [`Client::fleet_events`].
pub struct FleetEvents {
    client: Client,
    records: Option<Records>,
    last_event_id: Option<String>,
    pause: Duration,
    away_since: Option<Instant>,
}

impl std::fmt::Debug for FleetEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetEvents")
            .field("last_event_id", &self.last_event_id)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Opens the event stream of the fleet: what happens from now on, or after the event
    /// `last_event_id` if the server still knows it. A list that is read after this call misses
    /// nothing that the stream does not tell.
    ///
    /// # Errors
    /// When the server refuses or cannot be reached.
    pub async fn fleet_events(&self, last_event_id: Option<&str>) -> Result<FleetEvents, Error> {
        let last_event_id = last_event_id.map(str::to_owned);
        let records = self.open_fleet(last_event_id.as_deref()).await?;
        Ok(FleetEvents {
            client: self.clone(),
            records: Some(records),
            last_event_id,
            pause: FIRST_PAUSE,
            away_since: None,
        })
    }

    async fn open_fleet(&self, last_event_id: Option<&str>) -> Result<Records, Error> {
        match open_stream(self, &["v1", "events"], last_event_id).await? {
            Some(records) => Ok(records),
            None => Err(Error::Decode {
                url: self.base_url().to_string(),
                reason: "the answer is no event stream; is there a proxy that rewrites it?".into(),
            }),
        }
    }
}

impl FleetEvents {
    /// The next event. The stream has no end: a lost connection is made again, and goes on behind
    /// the last event, if the server still knows that one.
    ///
    /// # Errors
    /// When the server refuses the stream, or stays away for too long.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            let Some(records) = &mut self.records else {
                self.reconnect().await?;
                continue;
            };
            match futures_util::StreamExt::next(records).await {
                Some(Ok(record)) => {
                    // A record that cannot be read is of a kind this client does not know.
                    let Ok(event) = serde_json::from_str::<Event>(&record.data) else {
                        continue;
                    };
                    self.pause = FIRST_PAUSE;
                    self.away_since = None;
                    if !record.id.is_empty() {
                        self.last_event_id = Some(record.id);
                    }
                    return Ok(event);
                }
                Some(Err(_)) | None => self.records = None,
            }
        }
    }

    async fn reconnect(&mut self) -> Result<(), Error> {
        tokio::time::sleep(jittered(self.pause)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        match self.client.open_fleet(self.last_event_id.as_deref()).await {
            Ok(records) => self.records = Some(records),
            Err(error) => {
                let since = *self.away_since.get_or_insert_with(Instant::now);
                if !error.is_retryable() || since.elapsed() > AWAY_LIMIT {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
