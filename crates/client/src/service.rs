//! Probes and identity: the routes that need no token.

use fuse_wire_api::{HealthStatus, Readiness, VersionInfo};
use reqwest::Method;

use crate::transport::{Call, decode, header, read};
use crate::{Client, Error};

/// What answered at the base URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// HTTP status of the version route.
    pub status: u16,
    /// `Server` header.
    pub server: Option<String>,
    /// `service` of the body, when it has one.
    pub service: Option<String>,
    /// `version` of the body, when it has one.
    pub version: Option<String>,
    /// `Date` header: the clock of what answered.
    pub date: Option<String>,
    /// The certificate that it showed (DER), over https.
    pub certificate: Option<Vec<u8>>,
}

impl Identity {
    /// Whether it is a Fuse orchestrator.
    #[must_use]
    pub fn is_orchestrator(&self) -> bool {
        (200..300).contains(&self.status) && self.service.as_deref() == Some("fuse-orchestrator")
    }
}

impl Client {
    /// Asks what listens at the base URL, whatever it is. Anything that answers is an identity.
    ///
    /// # Errors
    /// When nothing answers.
    pub async fn identity(&self) -> Result<Identity, Error> {
        let call = self.call(Method::GET, &["v1", "version"])?;
        let url = self.base_url().to_string();
        let response = self.send_raw(call).await?;
        let status = response.status().as_u16();
        let server = header(&response, "server");
        let date = header(&response, "date");
        let tls = response.extensions().get::<reqwest::tls::TlsInfo>();
        let certificate = tls.and_then(|tls| tls.peer_certificate().map(<[u8]>::to_vec));
        let body = read(response, &url).await.unwrap_or_default();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let field = |name: &str| body.get(name).and_then(|v| v.as_str()).map(str::to_owned);
        Ok(Identity {
            status,
            server,
            service: field("service"),
            version: field("version"),
            date,
            certificate,
        })
    }

    /// Reads the orchestrator's version.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn version(&self) -> Result<VersionInfo, Error> {
        self.fetch(self.call(Method::GET, &["v1", "version"])?)
            .await
    }

    /// Whether the process is alive.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn health(&self) -> Result<HealthStatus, Error> {
        self.fetch(self.call(Method::GET, &["health"])?).await
    }

    /// Whether it can serve, check by check; a server that is not ready is an answer here.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn readiness(&self) -> Result<Readiness, Error> {
        let call: Call = self.call(Method::GET, &["ready"])?;
        let url = self.base_url().to_string();
        let body = read(self.send_raw(call).await?, &url).await?;
        decode(&body, &url)
    }
}
