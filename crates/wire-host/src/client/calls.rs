//! One method per route.

use std::time::Duration;

use http::Method;
use http::header::RETRY_AFTER;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Call, HostError};
use super::transport::HostTransport;
use crate::capacity::{Capacity, Health};
use crate::exec::{ExecRequest, ExecResponse};
use crate::files::UploadRequest;
use crate::start_agent::{StartAgentRequest, StartAgentResponse};
use crate::token::AgentToken;
use crate::url_policy::AgentUrl;
use crate::vm::{CreateVmRequest, VmList, VmView};
use crate::{Generations, limits, name};

/// A host agent: its address, its token, and a share of the process's connections.
#[derive(Debug, Clone)]
pub struct HostClient {
    transport: HostTransport,
    agent: AgentUrl,
    token: AgentToken,
}

/// A call on its way: what it is, how it is sent, how long it may take in the agent.
pub(super) struct Plan<'a> {
    call: Call,
    method: Method,
    segments: &'a [&'a str],
    query: Option<(&'a str, &'a str)>,
    limit: Duration,
}

impl<'a> Plan<'a> {
    pub(super) fn new(
        call: Call,
        method: Method,
        segments: &'a [&'a str],
        limit: Duration,
    ) -> Self {
        Self {
            call,
            method,
            segments,
            query: None,
            limit,
        }
    }
}

impl HostClient {
    /// A client for one agent.
    #[must_use]
    pub fn new(transport: HostTransport, agent: AgentUrl, token: AgentToken) -> Self {
        Self {
            transport,
            agent,
            token,
        }
    }

    /// The agent's address.
    #[must_use]
    pub fn agent(&self) -> &AgentUrl {
        &self.agent
    }

    pub(super) fn token(&self) -> &AgentToken {
        &self.token
    }

    /// `GET /healthz`.
    ///
    /// # Errors
    /// See [`HostError`].
    pub async fn health(&self) -> Result<Health, HostError> {
        self.get_json(Plan::new(
            Call::Health,
            Method::GET,
            &["healthz"],
            limits::READ_LIMIT,
        ))
        .await
    }

    /// `GET /v1/capacity`.
    ///
    /// # Errors
    /// See [`HostError`].
    pub async fn capacity(&self) -> Result<Capacity, HostError> {
        let path = ["v1", "capacity"];
        self.get_json(Plan::new(
            Call::Capacity,
            Method::GET,
            &path,
            limits::READ_LIMIT,
        ))
        .await
    }

    /// `POST /v1/vm`. Returns when the guest has answered.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::Conflict`] when a VM of that name exists.
    pub async fn create(&self, request: &CreateVmRequest) -> Result<VmView, HostError> {
        let path = ["v1", "vm"];
        let plan = Plan::new(Call::Create, Method::POST, &path, limits::CREATE_LIMIT);
        self.send_json(plan, request).await
    }

    /// `GET /v1/vm?prefix=`: VMs whose name starts with `prefix`; empty is all.
    ///
    /// # Errors
    /// See [`HostError`].
    pub async fn list(&self, prefix: &str) -> Result<VmList, HostError> {
        let path = ["v1", "vm"];
        let mut plan = Plan::new(Call::List, Method::GET, &path, limits::READ_LIMIT);
        if !prefix.is_empty() {
            plan.query = Some(("prefix", prefix));
        }
        self.get_json(plan).await
    }

    /// `GET /v1/vm/{id}`.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::NotFound`] when there is no such VM.
    pub async fn get(&self, vm: &str) -> Result<VmView, HostError> {
        let id = name::vm_id(vm);
        let path = ["v1", "vm", &id];
        self.get_json(Plan::new(Call::Get, Method::GET, &path, limits::READ_LIMIT))
            .await
    }

    /// `DELETE /v1/vm/{id}`.
    ///
    /// # Errors
    /// See [`HostError`]; [`HostError::NotFound`] when there is no such VM.
    pub async fn delete(&self, vm: &str) -> Result<(), HostError> {
        let id = name::vm_id(vm);
        let path = ["v1", "vm", &id];
        let plan = Plan::new(Call::Delete, Method::DELETE, &path, limits::DELETE_LIMIT);
        let answer = self.send(plan, None).await?;
        // 204, or an object of an older agent's: anybody else's word is no confirmation.
        if !answer.is_empty() {
            self.parse::<serde_json::Value>(Call::Delete, &answer)?;
        }
        Ok(())
    }

    /// `POST /v1/vm/{id}/upload`.
    ///
    /// # Errors
    /// See [`HostError`].
    pub async fn upload(&self, vm: &str, files: &UploadRequest) -> Result<(), HostError> {
        let id = name::vm_id(vm);
        let path = ["v1", "vm", &id, "upload"];
        let plan = Plan::new(Call::Upload, Method::POST, &path, limits::UPLOAD_LIMIT);
        self.send_json::<_, serde_json::Value>(plan, files)
            .await
            .map(drop)
    }

    /// `POST /v1/vm/{id}/exec`. A non-zero exit code is a success here.
    ///
    /// # Errors
    /// See [`HostError`].
    pub async fn exec(&self, vm: &str, request: &ExecRequest) -> Result<ExecResponse, HostError> {
        let id = name::vm_id(vm);
        let path = ["v1", "vm", &id, "exec"];
        let plan = Plan::new(Call::Exec, Method::POST, &path, request.limit());
        self.send_json(plan, request).await
    }

    /// `POST /v1/vm/{id}/start-agent`.
    ///
    /// # Errors
    /// See [`HostError`].
    pub async fn start_agent(
        &self,
        vm: &str,
        request: &StartAgentRequest,
    ) -> Result<StartAgentResponse, HostError> {
        let id = name::vm_id(vm);
        let path = ["v1", "vm", &id, "start-agent"];
        let plan = Plan::new(
            Call::StartAgent,
            Method::POST,
            &path,
            limits::START_AGENT_LIMIT,
        );
        self.send_json(plan, request).await
    }

    pub(super) async fn get_json<T: DeserializeOwned>(
        &self,
        plan: Plan<'_>,
    ) -> Result<T, HostError> {
        let call = plan.call;
        let body = self.send(plan, None).await?;
        self.parse(call, &body)
    }

    pub(super) async fn send_json<B: Serialize, T: DeserializeOwned>(
        &self,
        plan: Plan<'_>,
        body: &B,
    ) -> Result<T, HostError> {
        let call = plan.call;
        let body = serde_json::to_vec(body).map_err(|source| self.malformed(call, source))?;
        let answer = self.send(plan, Some(body)).await?;
        self.parse(call, &answer)
    }

    fn parse<T: DeserializeOwned>(&self, call: Call, body: &[u8]) -> Result<T, HostError> {
        serde_json::from_slice(body).map_err(|source| self.malformed(call, source))
    }

    fn malformed(&self, call: Call, source: serde_json::Error) -> HostError {
        HostError::Malformed {
            call,
            agent: self.agent.clone(),
            source,
        }
    }

    /// Sends and reads the whole answer within the call's bound.
    pub(super) async fn send(
        &self,
        plan: Plan<'_>,
        body: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, HostError> {
        let call = plan.call;
        let mut url = self.agent.route(plan.segments);
        if let Some((key, value)) = plan.query {
            url.query_pairs_mut().append_pair(key, value);
        }
        let mut request = self
            .request(plan.method, url)
            .timeout(plan.limit + limits::CALL_GRACE);
        if let Some(body) = body {
            request = request
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(body);
        }
        let response = request
            .send()
            .await
            .map_err(|e| self.transport_error(call, e))?;
        self.read(call, response).await
    }

    /// A request that carries the token.
    pub(super) fn request(&self, method: Method, url: url::Url) -> reqwest::RequestBuilder {
        let request = self.transport.http.request(method, url);
        if self.token.is_empty() {
            request
        } else {
            request.bearer_auth(self.token.expose())
        }
    }

    /// Reads the whole answer: the body of a success, else the error it stands for.
    pub(super) async fn read(
        &self,
        call: Call,
        mut response: reqwest::Response,
    ) -> Result<Vec<u8>, HostError> {
        let status = response.status();
        let theirs = Generations::stated_in(response.headers());
        if Generations::OURS.common(theirs).is_none() {
            return Err(HostError::generation(call, &self.agent, theirs));
        }
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let success = status.is_success();
        let limit = if success {
            limits::MAX_ANSWER_BYTES
        } else {
            limits::MAX_ERROR_BYTES
        };
        let mut answer = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|e| self.transport_error(call, e))?
        {
            let room = limit - answer.len();
            if chunk.len() > room && success {
                return Err(HostError::TooLarge {
                    call,
                    agent: self.agent.clone(),
                    limit,
                });
            }
            answer.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                break;
            }
        }
        if success {
            return Ok(answer);
        }
        let text = String::from_utf8_lossy(&answer).trim().to_owned();
        Err(HostError::from_status(
            call,
            &self.agent,
            status,
            retry_after,
            text,
        ))
    }

    pub(super) fn transport_error(&self, call: Call, source: reqwest::Error) -> HostError {
        let agent = self.agent.clone();
        // The URL names the agent already; reqwest would repeat it.
        let source = source.without_url();
        if source.is_connect() {
            HostError::Unreachable {
                call,
                agent,
                source,
            }
        } else {
            HostError::NoAnswer {
                call,
                agent,
                source,
            }
        }
    }
}
