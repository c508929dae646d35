//! Running an agent: start-up order, housekeeping, shutdown.
//!
//! The listener is opened only after every VM is known and all packet rules stand. Signals stop the
//! agent and never a VM.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fuse_daemon::{signals::EndSignals, systemd, tls::TlsError};
use thiserror::Error;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock_set::ClockSet;
use crate::config::{Config, PublicHost, PublicHostError};
use crate::http::{App, server};
use crate::net::firewall::{self, Verdict};
use crate::net::local_ports;
use crate::preflight::{self, PreflightError};
use crate::registry::{self, HostError, HostParts, Registry, StopError};
use crate::vmm::Vmm;
use crate::vmm::process::rotate_log;
use fuse_daemon::log::chain;

/// How often the packet rules are compared with what they should be.
const VERIFY_EVERY: Duration = Duration::from_secs(60);
/// How often guests are told what time it is. No two clocks run alike: in this time they are a few
/// hundredths of a second apart at most.
const CLOCKS_EVERY: Duration = Duration::from_secs(600);
/// How often the VMs' logs are measured.
const LOGS_EVERY: Duration = Duration::from_secs(10);
/// Longest log of a VM in bytes; as much again is kept of what was before.
const LOG_LIMIT: u64 = 16 * 1024 * 1024;

/// An agent that does not start.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The host lacks something.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// No public host.
    #[error(transparent)]
    PublicHost(#[from] PublicHostError),
    /// The VMs cannot be taken charge of.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The VMs cannot be stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The certificate of the listener cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] std::io::Error),
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// The agent cannot start; nothing was changed on the host.
pub async fn serve(config: Config, vmm: Arc<dyn Vmm>) -> Result<(), ServeError> {
    let tools = preflight::serve(&config)?;
    let tls = acceptor(&config)?;
    let public_host = match &config.public_host {
        Some(host) => host.clone(),
        None => PublicHost::detect()?,
    };
    let shutdown = shutdown_on_signal()?;
    // Bound before the VMs are touched, so that a second agent ends here; connections wait in the
    // backlog until they are served.
    let listener = server::bind(config.listen).await;
    let listener = listener.map_err(|source| preflight::listen_error(&config, source))?;
    let address = listener.local_addr().unwrap_or(config.listen);
    if tls.is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            %address,
            certificate = format!("{}_AGENT_TLS_CERT", config.backend.prefix),
            "the agent's port is not encrypted: the token and uploads cross the network in clear; \
             give it a certificate, keep it on a private network or bind it to loopback"
        );
    }
    warn_of_shared_ports(&config);
    let config = Arc::new(config);
    let parts = HostParts {
        config: Arc::clone(&config),
        public_host: public_host.clone(),
        vmm,
        nft: tools.nft,
        mkfs: tools.mkfs,
    };
    let nft = parts.nft.clone();
    let registry = Registry::start(parts).await?;
    warn_of_dropping_chains(&nft, &config).await;
    let housekeeping = TaskTracker::new();
    housekeeping.spawn(keep_rules(registry.clone(), shutdown.clone()));
    housekeeping.spawn(keep_clocks(registry.clone(), shutdown.clone()));
    housekeeping.spawn(keep_logs(registry.clone(), shutdown.clone()));
    housekeeping.spawn(until(shutdown.clone(), systemd::keep_alive()));
    housekeeping.close();
    tracing::info!(%address, %public_host, vms = registry.list("").len(), "serving");
    systemd::ready();
    let router = App::new(registry.clone()).router();
    server::serve((listener, tls), router, config.http.idle, shutdown).await;
    housekeeping.wait().await;
    registry.shut_down().await;
    leave(&registry, &nft, &config).await;
    Ok(())
}

fn acceptor(config: &Config) -> Result<Option<TlsAcceptor>, TlsError> {
    let Some(files) = &config.tls else {
        return Ok(None);
    };
    // An error means that a provider is installed already.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    Ok(Some(TlsAcceptor::from(files.load()?)))
}

/// Powers off all guests of a host whose agent does not run, and takes away everything but the VMs'
/// files. Returns how many ran.
///
/// # Errors
/// An agent runs, the host lacks something, or something cannot be removed.
pub async fn stop_vms(config: &Config, vmm: Arc<dyn Vmm>) -> Result<usize, ServeError> {
    let nft = preflight::network(config)?;
    Ok(registry::stop_all(config, &vmm, &nft).await?)
}

fn shutdown_on_signal() -> Result<CancellationToken, ServeError> {
    let mut signals = EndSignals::catch().map_err(ServeError::Signals)?;
    let token = CancellationToken::new();
    let cancel = token.clone();
    // Lives as long as the process; there is nothing to wait for.
    TaskTracker::new().spawn(async move {
        signals.received().await;
        tracing::info!("shutting down");
        systemd::stopping();
        cancel.cancel();
    });
    Ok(token)
}

/// The last words. The rules stay as long as they serve a VM.
async fn leave(registry: &Registry, nft: &Path, config: &Config) {
    let vms = registry.list("").len();
    if vms > 0 {
        tracing::info!(vms, "stopped; VMs go on running");
        return;
    }
    registry.host().leave_cgroups();
    match firewall::remove(nft, &config.net.table).await {
        Ok(()) => tracing::info!("stopped"),
        Err(error) => tracing::warn!(error = chain(&error), "the packet rules stay"),
    }
}

/// Whoever is given such a port by the kernel, however seldom, loses its clients to a guest.
fn warn_of_shared_ports(config: &Config) {
    let net = &config.net;
    if let Some(ports) = local_ports::shared(&[net.plan.host_ports(), net.expose.clone()]) {
        let ports = format!("{}-{}", ports.start(), ports.end());
        tracing::warn!(
            ports,
            "programs of this host may be given ports that lead to guests; move FUSE_HOST_PORT_BASE \
             or FUSE_EXPOSE_PORT_RANGE out of the range that `sysctl net.ipv4.ip_local_port_range` \
             shows, or keep them from programs: sysctl -w net.ipv4.ip_local_reserved_ports={ports}"
        );
    }
}

/// Guests without a way out are the usual surprise beside a container engine.
async fn warn_of_dropping_chains(nft: &Path, config: &Config) {
    let chains = firewall::dropping_chains(nft, &config.net.table).await;
    for chain in chains.unwrap_or_default() {
        tracing::warn!(
            chain,
            taps = format!("{}*", config.net.plan.tap_prefix()),
            "this chain drops forwarded packets, the guests' too; accept those from and to the taps \
             in it, or guests have no way out and published ports no way in"
        );
    }
}

async fn keep_rules(registry: Registry, shutdown: CancellationToken) {
    let mut tick = tokio::time::interval(VERIFY_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once, and the rules were just written.
    tick.tick().await;
    while let Some(()) = next(&mut tick, &shutdown).await {
        let outcome = match registry.host().firewall.verify().await {
            Ok(Verdict::Intact) => {
                tracing::debug!("packet rules intact");
                "intact"
            }
            Ok(Verdict::Repaired) => {
                tracing::warn!("packet rules were changed; written anew");
                "repaired"
            }
            Err(error) => {
                tracing::error!(error = chain(&error), "packet rules cannot be kept");
                "failed"
            }
        };
        registry.host().metrics.rules(outcome);
    }
}

/// Guests go by the clock of their host, also when it was set, and after the host has slept.
async fn keep_clocks(registry: Registry, shutdown: CancellationToken) {
    let clock = ClockSet::watch();
    if let Err(error) = &clock {
        tracing::warn!(%error, "a clock that is set is not noticed at once");
    }
    let was_set = async || match &clock {
        Ok(clock) => clock.next().await,
        Err(_) => std::future::pending().await,
    };
    let mut tick = tokio::time::interval(CLOCKS_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once, and who runs was told when this agent found it.
    tick.tick().await;
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            Ok(()) = was_set() => tracing::info!("the clock of the host was set"),
            () = shutdown.cancelled() => return,
        }
        tokio::select! {
            () = registry.set_clocks() => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn keep_logs(registry: Registry, shutdown: CancellationToken) {
    let mut tick = tokio::time::interval(LOGS_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while let Some(()) = next(&mut tick, &shutdown).await {
        let logs = registry.host().logs();
        let work = move || {
            for log in logs {
                // A VM that is being made or removed has no log.
                if let Ok(true) = rotate_log(&log, LOG_LIMIT) {
                    tracing::info!(log = %log.display(), "log cut to size");
                }
            }
        };
        if let Err(error) = tokio::task::spawn_blocking(work).await {
            tracing::error!(%error, "log keeping lost");
        }
    }
}

async fn until(shutdown: CancellationToken, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = shutdown.cancelled() => {}
    }
}

async fn next(tick: &mut tokio::time::Interval, shutdown: &CancellationToken) -> Option<()> {
    tokio::select! {
        _ = tick.tick() => Some(()),
        () = shutdown.cancelled() => None,
    }
}
