//! Reading what a VM printed.

use bytes::Bytes;
use http::Method;

use super::calls::{HostClient, Plan};
use super::error::{Call, HostError};
use crate::logs::{FailedCreate, LogSource};
use crate::{limits, name};

/// A log on its way. Dropping it ends the call.
#[derive(Debug)]
pub struct LogStream {
    client: HostClient,
    response: reqwest::Response,
}

impl LogStream {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The connection breaks.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HostError> {
        let chunk = self.response.chunk().await;
        chunk.map_err(|e| self.client.transport_error(Call::Logs, e))
    }
}

impl HostClient {
    /// `GET /v1/vm/{id}/logs`: what is there, and with `follow` what comes. Only the begin of the
    /// answer is bounded.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::NotFound`] when there is no such VM, or the agent is too old.
    pub async fn logs(
        &self,
        vm: &str,
        source: LogSource,
        follow: bool,
    ) -> Result<LogStream, HostError> {
        let call = Call::Logs;
        let id = name::vm_id(vm);
        let mut url = self.agent().route(&["v1", "vm", &id, "logs"]);
        url.query_pairs_mut()
            .append_pair("source", source.as_str())
            .append_pair("follow", if follow { "1" } else { "0" });
        let begin = async {
            let sent = self.request(Method::GET, url).send().await;
            sent.map_err(|e| self.transport_error(call, e))
        };
        let silent = || HostError::Silent {
            call,
            agent: self.agent().clone(),
        };
        let begun = tokio::time::timeout(limits::READ_LIMIT + limits::CALL_GRACE, begin).await;
        let response = begun.map_err(|_| silent())??;
        if !response.status().is_success() {
            // Never a success: that was looked at.
            self.read(call, response).await?;
            return Err(silent());
        }
        Ok(LogStream {
            client: self.clone(),
            response,
        })
    }

    /// `GET /v1/vm/{id}/failure`.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::NotFound`] when none is remembered, or the agent is too old.
    pub async fn failed_create(&self, vm: &str) -> Result<FailedCreate, HostError> {
        let id = name::vm_id(vm);
        let path = ["v1", "vm", &id, "failure"];
        let plan = Plan::new(Call::Failure, Method::GET, &path, limits::READ_LIMIT);
        self.get_json(plan).await
    }
}
