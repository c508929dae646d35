//! Attaching to a command in a guest: an upgrade on a stream of its own, then bytes.

use std::time::Duration;

use bytes::Bytes;
use fuse_wire_guest::CONTROL_PORT;
use fuse_wire_guest::control::path;
use fuse_wire_host::attach::{PROTOCOL, Request, Sent};
use http::StatusCode;
use http::header::{CONNECTION, HOST, UPGRADE};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;

use super::client::{GuestClient, GuestError, refusal};

/// Most bytes of a refusal that are read.
const MAX_REFUSAL: usize = 64 * 1024;

/// The bytes of an attached command, both ways.
pub type AttachedStream = TokioIo<Upgraded>;

impl GuestClient {
    /// Starts a command and gives its connection.
    ///
    /// # Errors
    /// See [`GuestError`].
    pub async fn attach(
        &self,
        request: &Request,
        limit: Duration,
    ) -> Result<AttachedStream, GuestError> {
        let attached = tokio::time::timeout(limit, self.upgrade(request)).await;
        attached.unwrap_or(Err(GuestError::Timeout(limit)))
    }

    async fn upgrade(&self, request: &Request) -> Result<AttachedStream, GuestError> {
        let broken = |error: hyper::Error| GuestError::Channel(error.into());
        let stream = self.transport().dial(CONTROL_PORT).await;
        let stream = stream.map_err(|error| GuestError::Channel(error.into()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        let (builder, body) = match request.sent() {
            Sent::Query(query) => {
                let target = format!("{}?{query}", path::ATTACH);
                (http::Request::get(target), Bytes::new())
            }
            Sent::Body => {
                let body = serde_json::to_vec(request).map_err(GuestError::Malformed)?;
                (http::Request::post(path::ATTACH), Bytes::from(body))
            }
        };
        let request = builder
            .header(HOST, "guest")
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, PROTOCOL)
            .body(Full::new(body))
            .map_err(|error| GuestError::Channel(error.into()))?;
        let answer = async {
            let mut response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                let stream = hyper::upgrade::on(&mut response).await.map_err(broken)?;
                return Ok(TokioIo::new(stream));
            }
            let body = Limited::new(response.into_body(), MAX_REFUSAL)
                .collect()
                .await;
            Err(refusal(
                status,
                &body.map_err(GuestError::Channel)?.to_bytes(),
            ))
        };
        let mut answer = std::pin::pin!(answer);
        // Driven here: it ends with the hand-over, or with the guest.
        tokio::select! {
            answer = &mut answer => answer,
            end = connection.with_upgrades() => match end {
                Ok(()) => answer.await,
                Err(error) => answer.await.map_err(|_: GuestError| broken(error)),
            },
        }
    }
}
