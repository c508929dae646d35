//! Attaching to a command in a guest.

use fuse_wire_attach::{PROTOCOL, Request, Sent};
use http::header::{CONNECTION, UPGRADE};
use http::{Method, StatusCode};

use super::calls::HostClient;
use super::error::{Call, HostError};
use crate::{limits, name};

/// An attached command: the bytes of `fuse-attach/1` frames, both ways. Dropping it ends the
/// command.
pub type AttachStream = reqwest::Upgraded;

impl HostClient {
    /// `GET /v1/vm/{id}/attach` (`POST` with a long command), upgraded. Only the handshake is bounded; bytes that came with it
    /// are the first that the stream gives.
    ///
    /// # Errors
    /// See [`HostError`].
    pub async fn attach(&self, vm: &str, request: &Request) -> Result<AttachStream, HostError> {
        let call = Call::Attach;
        let id = name::vm_id(vm);
        let mut url = self.agent().route(&["v1", "vm", &id, "attach"]);
        let request = match request.sent() {
            Sent::Query(query) => {
                url.set_query(Some(&query));
                self.request(Method::GET, url)
            }
            Sent::Body => self.request(Method::POST, url).json(request),
        };
        let request = request
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, PROTOCOL);
        let handshake = async {
            let response = request.send().await;
            let response = response.map_err(|e| self.transport_error(call, e))?;
            if response.status() != StatusCode::SWITCHING_PROTOCOLS {
                self.read(call, response).await?;
                return Err(self.not_upgraded(call));
            }
            let upgraded = response.upgrade().await;
            upgraded.map_err(|e| self.transport_error(call, e))
        };
        tokio::time::timeout(limits::ATTACH_LIMIT, handshake)
            .await
            .unwrap_or_else(|_| Err(self.not_upgraded(call)))
    }

    fn not_upgraded(&self, call: Call) -> HostError {
        let agent = self.agent().clone();
        HostError::NotUpgraded { call, agent }
    }
}
