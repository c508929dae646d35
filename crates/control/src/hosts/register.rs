//! Registers a host. The probe is the first contact with its agent, and so the check of
//! its token: a host that could never be scheduled onto is not stored.

use fuse_model::{AuditEntry, AuditKind, Backend, Capacity, ErrorKind, Host, HostId, Redacted};
use fuse_store::{HostRegistration, Registered};
use fuse_wire_api::RegisterHost;
use fuse_wire_host::{AgentUrl, AgentUrlError, HostError};

use super::merge::{self, ArchContradiction};
use crate::{Control, Error, error::chain};

/// A host was refused.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The URL must not be dialled.
    #[error("url: {0}")]
    Url(AgentUrlError),
    /// The agent answered 401.
    #[error(
        "host agent at {url} rejected the token. this must be its {variable}, not the orchestrator token"
    )]
    TokenRejected {
        /// The agent.
        url: String,
        /// Where its token is set.
        variable: &'static str,
    },
    /// The probe failed and capacity was not declared in full.
    #[error(
        "could not probe host capacity and cpus/ram_mb/storage_gb were not all declared explicitly: {0}"
    )]
    ProbeFailed(String),
    /// Another architecture than the agent says.
    #[error(transparent)]
    Arch(#[from] ArchContradiction),
    /// Something is missing in the end.
    #[error(
        "cpus, ram_mb, storage_gb, and vm_count must be positive (got {cpus}, {ram_mb}, {storage_gb}, {vm_count}); vm_count is never probed, declare it"
    )]
    NotPositive {
        /// vCPUs.
        cpus: i32,
        /// MiB.
        ram_mb: i32,
        /// GiB.
        storage_gb: i32,
        /// VM slots.
        vm_count: i32,
    },
    /// Environments are assigned to the host, and their backend is another one.
    #[error(
        "host {host} still has {count} vms of another backend: destroy them before changing its backend"
    )]
    BackendInUse {
        /// The host.
        host: HostId,
        /// How many.
        count: u64,
    },
}

impl RegisterError {
    /// The kind that callers are answered with.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Url(_) | Self::Arch(_) | Self::NotPositive { .. } => ErrorKind::Invalid,
            Self::TokenRejected { .. } => ErrorKind::Unauthenticated,
            Self::ProbeFailed(_) => ErrorKind::Internal,
            Self::BackendInUse { .. } => ErrorKind::Conflict,
        }
    }
}

/// A stored host and what was odd about it.
#[derive(Debug, Clone)]
pub struct Registration {
    /// As stored.
    pub host: Host,
    /// For the operator.
    pub warnings: Vec<String>,
}

impl Control {
    /// Registers a host, or registers it anew. The request has passed its own checks.
    ///
    /// # Errors
    /// See [`RegisterError`]; or the store fails.
    pub async fn host_register(&self, request: RegisterHost) -> Result<Registration, Error> {
        let control = self.clone();
        self.detached(async move { control.register(request).await })
            .await
    }

    async fn register(&self, request: RegisterHost) -> Result<Registration, Error> {
        let url = AgentUrl::parse(&request.url).map_err(RegisterError::Url)?;
        let id = HostId::new(request.id.clone());
        let backend = request.backend.parse().unwrap_or(Backend::Firecracker);
        let token = Redacted::new(request.token.clone());
        let probe = self
            .inner
            .providers
            .client(url.clone(), &token)
            .capacity()
            .await;
        let reachable = probe.as_ref().err().map(|e| chain(e));
        let (capacity, warnings) = settle(&request, backend, &url, probe)?;
        let registration = HostRegistration {
            id: id.clone(),
            url: url.to_string(),
            token,
            region: request.region,
            backend,
            labels: request.labels,
            capacity,
        };
        let audit = AuditEntry::new(AuditKind::HostRegistered, id.as_str())
            .with("url", url.to_string())
            .with("backend", backend.as_str());
        match self
            .inner
            .store
            .host_upsert(registration, vec![audit])
            .await?
        {
            Registered::Stored(host) => {
                self.inner.providers.forget(&id);
                let contact = reachable.map_or_else(|| Ok(String::new()), Err);
                self.inner.reachability.note(&id, contact);
                self.check_keys_again().await;
                tracing::info!(host_id = %id, url = %url, "host registered");
                Ok(Registration {
                    host: *host,
                    warnings,
                })
            }
            Registered::BackendInUse(count) => {
                Err(RegisterError::BackendInUse { host: id, count }.into())
            }
        }
    }
}

/// Declaration and probe to capacity, or a refusal.
fn settle(
    request: &RegisterHost,
    backend: Backend,
    url: &AgentUrl,
    probe: Result<fuse_wire_host::Capacity, HostError>,
) -> Result<(Capacity, Vec<String>), RegisterError> {
    let (capacity, warnings) = match probe {
        Ok(probed) => merge::merge(&request.capacity, &probed)?,
        Err(HostError::Unauthorized { .. }) => {
            let variable = match backend {
                Backend::Firecracker => "FC_AGENT_TOKEN",
                Backend::Qemu => "QEMU_AGENT_TOKEN",
            };
            return Err(RegisterError::TokenRejected {
                url: url.to_string(),
                variable,
            });
        }
        Err(e) if !merge::is_complete(&request.capacity) => {
            return Err(RegisterError::ProbeFailed(chain(&e)));
        }
        Err(e) => {
            let mut warnings = vec![format!(
                "could not verify host agent at {url} ({}); registering with declared capacity",
                chain(&e)
            )];
            if backend == Backend::Qemu && request.capacity.gpus <= 0 {
                warnings.push(
                    "no gpus were declared and none could be probed; the host offers no GPU"
                        .to_owned(),
                );
            }
            (merge::declared_only(&request.capacity), warnings)
        }
    };
    let Capacity {
        cpus,
        ram_mb,
        storage_gb,
        vm_count,
        ..
    } = capacity;
    if cpus <= 0 || ram_mb <= 0 || storage_gb <= 0 || vm_count <= 0 {
        return Err(RegisterError::NotPositive {
            cpus,
            ram_mb,
            storage_gb,
            vm_count,
        });
    }
    Ok((capacity, warnings))
}
