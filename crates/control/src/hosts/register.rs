//! Registers a host. The probe is the first contact with its agent, and so the check of
//! its token: a host that could never be scheduled onto is not stored.

use fuse_model::{
    AgentCheck, AuditEntry, AuditKind, Backend, Capacity, ErrorKind, Host, HostId, Redacted,
};
use fuse_store::{HostRegistration, Registered};
use fuse_wire_api::{Capacity as Declared, RegisterHost};
use fuse_wire_host::{AgentUrl, AgentUrlError, HostError};

use super::{
    merge::{self, ArchContradiction},
    watch,
};
use crate::{
    Control, Error,
    error::{Missing, chain},
    provider::ProviderError,
};

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
    /// Nothing in common with the agent: it is of a release too far away.
    #[error("{0}")]
    Generation(String),
    /// The probe failed and capacity was not declared in full.
    #[error(
        "could not probe host capacity and cpus/ram_mb/storage_gb were not all declared explicitly: {0}"
    )]
    ProbeFailed(String),
    /// A registered host's agent could not be asked.
    #[error("could not probe host capacity: {0}")]
    NotProbed(String),
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
            Self::ProbeFailed(_) | Self::NotProbed(_) => ErrorKind::Internal,
            Self::BackendInUse { .. } | Self::Generation(_) => ErrorKind::Conflict,
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
        let check = check_of(self.inner.store.now(), &probe);
        let declared = merge::declared_only(&request.capacity);
        let (capacity, warnings) = settle(&request.capacity, backend, &url, probe)?;
        let mut audit = vec![
            AuditEntry::new(AuditKind::HostRegistered, id.as_str())
                .with("url", url.to_string())
                .with("backend", backend.as_str()),
        ];
        audit.extend(overcommitted(&id, &warnings));
        let registration = HostRegistration {
            id: id.clone(),
            url: url.to_string(),
            token,
            region: request.region,
            backend,
            labels: request.labels,
            capacity,
            declared,
            check,
        };
        match self.inner.store.host_upsert(registration, audit).await? {
            Registered::Stored(host) => {
                self.inner.providers.forget(&id);
                self.inner.fleet.forget();
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

impl Control {
    /// Asks a host's agent again what it has, and takes over what was not declared.
    ///
    /// # Errors
    /// It is not registered, its agent does not answer or rejects the token, or the
    /// store fails.
    pub async fn host_probe(&self, id: &HostId) -> Result<Registration, Error> {
        let (control, id) = (self.clone(), id.clone());
        self.detached(async move { control.probe(&id).await }).await
    }

    async fn probe(&self, id: &HostId) -> Result<Registration, Error> {
        let missing = || Missing::Host(id.clone());
        let store = &self.inner.store;
        let host = store.host_get(id).await?.ok_or_else(missing)?;
        let mut declared = store.host_declared(id).await?.ok_or_else(missing)?;
        // Policy; and hosts that were registered before declarations were kept have none.
        declared.vm_count = host.capacity.vm_count;
        declared.mig_profiles = host.capacity.mig_profiles.clone();
        let (_, provider) = self.inner.providers.of(Some(id)).await?;
        let found = match provider.capacity().await {
            Ok(found) => found.unwrap_or_default(),
            Err(e) => return Err(self.probe_failed(&host, e).await),
        };
        let (capacity, warnings) = merge::merge(&declared, &found).map_err(RegisterError::Arch)?;
        check_positive(&capacity)?;
        let check = watch::check(store.now(), Ok(Some(found)));
        let audit = overcommitted(id, &warnings).into_iter().collect();
        let stored = store.host_set_capacity(id, capacity, check, audit).await?;
        self.inner.fleet.forget();
        Ok(Registration {
            host: stored.ok_or_else(missing)?,
            warnings,
        })
    }

    async fn probe_failed(&self, host: &Host, error: ProviderError) -> Error {
        let text = error.chain();
        let check = watch::check(self.inner.store.now(), Err(text.clone()));
        let checks = vec![(host.id.clone(), check)];
        if let Err(e) = self.inner.store.host_checks_store(checks, Vec::new()).await {
            tracing::warn!(host_id = %host.id, error = %chain(&e), "cannot store a check");
        }
        match error {
            ProviderError::Host(HostError::Unauthorized { agent }) => {
                RegisterError::TokenRejected {
                    url: agent.to_string(),
                    variable: token_variable(host.backend),
                }
            }
            ProviderError::Host(_) | ProviderError::Unsupported { .. } => {
                RegisterError::NotProbed(text)
            }
        }
        .into()
    }
}

fn check_of(
    now: jiff::Timestamp,
    probe: &Result<fuse_wire_host::Capacity, HostError>,
) -> AgentCheck {
    let found = match probe {
        Ok(capacity) => Ok(Some(capacity.clone())),
        Err(e) => Err(chain(e)),
    };
    watch::check(now, found)
}

/// The entry for a declaration above what the host has.
fn overcommitted(id: &HostId, warnings: &[String]) -> Option<AuditEntry> {
    let above: Vec<&str> = warnings
        .iter()
        .map(String::as_str)
        .filter(|warning| warning.contains(" exceeds probed "))
        .collect();
    (!above.is_empty())
        .then(|| AuditEntry::new(AuditKind::HostOvercommitted, id.as_str()).with("reasons", above))
}

/// Where the agent of a backend finds its token.
fn token_variable(backend: Backend) -> &'static str {
    match backend {
        Backend::Firecracker => "FC_AGENT_TOKEN",
        Backend::Qemu => "QEMU_AGENT_TOKEN",
    }
}

/// Declaration and probe to capacity, or a refusal.
fn settle(
    request: &Declared,
    backend: Backend,
    url: &AgentUrl,
    probe: Result<fuse_wire_host::Capacity, HostError>,
) -> Result<(Capacity, Vec<String>), RegisterError> {
    let (capacity, warnings) = match probe {
        Ok(probed) => merge::merge(&merge::declared_only(request), &probed)?,
        Err(HostError::Unauthorized { .. }) => {
            return Err(RegisterError::TokenRejected {
                url: url.to_string(),
                variable: token_variable(backend),
            });
        }
        Err(e @ HostError::Generation { .. }) => {
            return Err(RegisterError::Generation(e.to_string()));
        }
        Err(e) if !merge::is_complete(request) => {
            return Err(RegisterError::ProbeFailed(chain(&e)));
        }
        Err(e) => {
            let mut warnings = vec![format!(
                "could not verify host agent at {url} ({}); registering with declared capacity",
                chain(&e)
            )];
            if backend == Backend::Qemu && request.gpus <= 0 {
                warnings.push(
                    "no gpus were declared and none could be probed; the host offers no GPU"
                        .to_owned(),
                );
            }
            (merge::declared_only(request), warnings)
        }
    };
    check_positive(&capacity)?;
    Ok((capacity, warnings))
}

fn check_positive(capacity: &Capacity) -> Result<(), RegisterError> {
    let Capacity {
        cpus,
        ram_mb,
        storage_gb,
        vm_count,
        ..
    } = *capacity;
    if cpus <= 0 || ram_mb <= 0 || storage_gb <= 0 || vm_count <= 0 {
        return Err(RegisterError::NotPositive {
            cpus,
            ram_mb,
            storage_gb,
            vm_count,
        });
    }
    Ok(())
}
