//! Finds the provider of an environment: its host's agent, or the default backend for
//! environments that were made before any host was registered.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use fuse_model::{ErrorKind, HostId, Redacted};
use fuse_store::{AgentToken as StoredToken, Store, StoreError};
use fuse_wire_host::{
    AgentRoots, AgentToken, AgentUrl, AgentUrlError, HostClient, HostTransport,
    client::TransportError,
};

use super::{AgentProvider, Provider, StubProvider};
use crate::error::{chain, of_the_store};

/// Another replica may register a host anew (new URL, new token): a client is made
/// again from the stored host after this time.
const FRESH: Duration = Duration::from_secs(5);

/// The provider of an environment could not be found.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The host is not registered any more.
    #[error("host {0} has no known backend: it is not registered")]
    UnknownHost(HostId),
    /// The host's token does not open.
    #[error(
        "the agent token of host {0} was stored under another TOKEN_ENCRYPTION_KEY: \
         register the host again, or start the orchestrator with that key"
    )]
    Undecryptable(HostId),
    /// The stored URL is not usable.
    #[error("host {host} has an unusable url")]
    Url {
        /// The host.
        host: HostId,
        /// Why.
        #[source]
        source: AgentUrlError,
    },
    /// The store failed. No `source`, because this is printed to callers and into records; who makes it
    /// logs the reason.
    #[error("{}", of_the_store(.0))]
    Store(StoreError),
}

impl LookupError {
    /// The store failed, and its reason is written to the log.
    pub(crate) fn logged(error: StoreError) -> Self {
        tracing::warn!(error = %chain(&error), "cannot look up a host");
        Self::Store(error)
    }

    /// The kind that callers are answered with.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownHost(_) | Self::Undecryptable(_) | Self::Url { .. } => ErrorKind::Internal,
            Self::Store(e) => e.kind(),
        }
    }
}

/// Where VMs are: one agent URL, or the stub. Two hosts with one URL are one place,
/// and a host with the URL of the default backend is the same place as that.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    /// No agent; see [`StubProvider`].
    Stub,
    /// The agent at this URL.
    Agent(String),
}

#[derive(Debug, Clone)]
struct Entry {
    place: Place,
    provider: Arc<dyn Provider>,
    made: Instant,
}

/// The providers of a fleet.
#[derive(Debug)]
pub(crate) struct Providers {
    store: Store,
    transport: HostTransport,
    default: (Place, Arc<dyn Provider>),
    hosts: Mutex<HashMap<HostId, Entry>>,
}

impl Providers {
    /// Providers whose default backend is the agent at `default`, or the stub.
    ///
    /// # Errors
    /// The HTTP client cannot be built.
    pub(crate) fn new(
        store: Store,
        default: Option<(AgentUrl, Redacted<String>)>,
        roots: &AgentRoots,
    ) -> Result<Self, TransportError> {
        let transport = HostTransport::trusting(roots)?;
        let default: (Place, Arc<dyn Provider>) = match default {
            None => (Place::Stub, Arc::new(StubProvider)),
            Some((url, token)) => {
                let place = Place::Agent(url.to_string());
                let token = AgentToken::new(token.into_inner());
                let client = HostClient::new(transport.clone(), url, token);
                (place, Arc::new(AgentProvider::new(client)))
            }
        };
        Ok(Self {
            store,
            transport,
            default,
            hosts: Mutex::default(),
        })
    }

    /// The provider and place of environments on `host`; `None` is the default backend.
    ///
    /// # Errors
    /// The host is unknown or unusable, or the store fails.
    pub(crate) async fn of(
        &self,
        host: Option<&HostId>,
    ) -> Result<(Place, Arc<dyn Provider>), LookupError> {
        let Some(host) = host else {
            return Ok(self.default.clone());
        };
        let cached = self
            .lock()
            .get(host)
            .filter(|entry| entry.made.elapsed() < FRESH)
            .cloned();
        if let Some(entry) = cached {
            return Ok((entry.place, entry.provider));
        }
        let entry = self.make(host).await?;
        self.lock().insert(host.clone(), entry.clone());
        Ok((entry.place, entry.provider))
    }

    /// Where environments without a host are.
    pub(crate) fn default_place(&self) -> &Place {
        &self.default.0
    }

    /// Forgets what is known of a host, after it was registered anew or removed.
    pub(crate) fn forget(&self, host: &HostId) {
        self.lock().remove(host);
    }

    /// A client for an agent that is not registered yet.
    #[must_use]
    pub(crate) fn client(&self, url: AgentUrl, token: &Redacted<String>) -> HostClient {
        HostClient::new(
            self.transport.clone(),
            url,
            AgentToken::new(token.expose().clone()),
        )
    }

    async fn make(&self, host: &HostId) -> Result<Entry, LookupError> {
        let unknown = || LookupError::UnknownHost(host.clone());
        let row = self
            .store
            .host_get(host)
            .await
            .map_err(LookupError::logged)?;
        let row = row.ok_or_else(unknown)?;
        let token = self
            .store
            .host_token(host)
            .await
            .map_err(LookupError::logged)?;
        let token = match token.ok_or_else(unknown)? {
            StoredToken::Known(token) => token,
            StoredToken::Undecryptable => return Err(LookupError::Undecryptable(host.clone())),
        };
        let url = AgentUrl::parse(&row.url).map_err(|source| LookupError::Url {
            host: host.clone(),
            source,
        })?;
        let place = Place::Agent(url.to_string());
        let provider = Arc::new(AgentProvider::new(self.client(url, &token)));
        Ok(Entry {
            place,
            provider,
            made: Instant::now(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<HostId, Entry>> {
        // The map is whole after every operation, so a panicked holder left it usable.
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
