//! Attaching to a command in a guest: `fuse-attach/1`.

use std::time::Duration;

use fuse_wire_attach::{Codec, PROTOCOL, Request};
use reqwest::header::HeaderValue;
use reqwest::{Method, StatusCode};
use tokio_util::codec::{Decoder as _, Framed};

use crate::error::Reason;
use crate::transport::Call;
use crate::{Client, Error};

/// Bound of the handshake; the session itself has none.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);

/// An open session: frames both ways. Dropping it ends the command.
pub type Session = Framed<reqwest::Upgraded, Codec>;

impl Client {
    /// Starts a command with a terminal in the guest of a running environment.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn attach(&self, environment: &str, request: &Request) -> Result<Session, Error> {
        let call = self
            .call(Method::GET, &["v1", "environments", environment, "attach"])?
            .raw_query(&request.to_query());
        handed_over(self, upgrade_to_attach(call)).await
    }
}

/// Asks for the connection.
pub(crate) fn upgrade_to_attach(call: Call) -> Call {
    call.header("connection", HeaderValue::from_static("Upgrade"))
        .header("upgrade", HeaderValue::from_static(PROTOCOL))
        .timeout(None)
}

/// Sends a call that asks for the connection and takes it.
pub(crate) async fn handed_over(client: &Client, call: Call) -> Result<Session, Error> {
    let url = call.shown();
    let failed = |reason| Error::Transport {
        url: url.clone(),
        reason,
    };
    let handshake = async {
        let response = client.send(call).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(Error::Decode {
                url: url.clone(),
                reason: "it did not hand the connection over".to_owned(),
            });
        }
        let upgraded = response.upgrade().await;
        upgraded.map_err(|error| failed(Reason::of(&error)))
    };
    let stream = tokio::time::timeout(HANDSHAKE_LIMIT, handshake)
        .await
        .unwrap_or_else(|_| Err(failed(Reason::TimedOut)))?;
    Ok(Codec.framed(stream))
}
