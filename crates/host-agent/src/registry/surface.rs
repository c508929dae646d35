//! Starting the guest agent's public surface and publishing ports.
//!
//! The guest starts the surface first; only then does its port lead anywhere, so nobody reaches a
//! surface that has no credentials yet. What is published is written down before the packet rules
//! change, and publishing the same port under the same name again keeps its host port.

use fuse_wire_guest::control::SurfaceRequest;
use fuse_wire_host::start_agent::Protocol;
use fuse_wire_host::{Endpoint, Expose, StartAgentRequest, StartAgentResponse, VmState, limits};

use super::actor::Actor;
use super::error::{LeaseError, SurfaceError};
use super::meta::{Meta, Published};
use crate::fail_point::place;
use crate::vmm::process::log_tail;

/// Where the control plane puts the token.
const TOKEN_FILE: &str = "/fuse/auth-token";

pub(super) async fn start(
    actor: &mut Actor,
    request: StartAgentRequest,
) -> Result<StartAgentResponse, SurfaceError> {
    let id = actor.meta.vm_id.clone();
    match actor.vm.state() {
        VmState::Running => {}
        VmState::Creating | VmState::Booting => {
            return Err(SurfaceError::Lease(LeaseError::Booting { id }));
        }
        VmState::Deleting => return Err(SurfaceError::Lease(LeaseError::Deleted { id })),
        VmState::Stopped | VmState::Unknown => return Err(stopped(actor)),
    }
    let expose = request.expose.clone();
    run_surface(actor, request).await?;
    publish(actor, &expose).await?;
    let endpoint = |wanted: &Expose| {
        let known = find(&actor.meta, wanted)?;
        Some(Endpoint {
            name: known.name.clone(),
            url: actor.host.url(known.host_port),
            port: known.port,
            host_port: known.host_port,
            protocol: known.protocol,
        })
    };
    Ok(StartAgentResponse {
        ok: true,
        endpoints: expose.iter().filter_map(endpoint).collect(),
    })
}

async fn run_surface(actor: &Actor, request: StartAgentRequest) -> Result<(), SurfaceError> {
    let id = || actor.meta.vm_id.clone();
    let default_listen = || format!("0.0.0.0:{}", actor.host.config.net.fused_port);
    let request = SurfaceRequest {
        vm_id: id(),
        listen: request
            .listen
            .filter(|l| !l.is_empty())
            .unwrap_or_else(default_listen),
        manifest_path: request.manifest_path,
        secrets_path: request.secrets_path,
        tls_cert_path: request.tls_cert_path,
        tls_key_path: request.tls_key_path,
        auth_token_file: request.auth_token.map(|_| TOKEN_FILE.to_owned()),
        gateway: request.gateway,
        binary_path: request.binary_path,
        extra_args: request.extra_args,
    };
    let status = tokio::select! {
        status = actor.vm.guest.surface(&request, limits::START_AGENT_LIMIT) => {
            status.map_err(|source| SurfaceError::Guest { id: id(), source })?
        }
        () = actor.vm.stop.cancelled() => {
            return Err(SurfaceError::Lease(LeaseError::Deleted { id: id() }));
        }
        () = ended(actor) => return Err(stopped(actor)),
    };
    if !status.running {
        let reason = status
            .error
            .unwrap_or_else(|| "it gave no reason".to_owned());
        return Err(SurfaceError::NotRunning { id: id(), reason });
    }
    Ok(())
}

async fn ended(actor: &Actor) {
    match &actor.process {
        Some(process) => process.ended().await,
        None => std::future::pending().await,
    }
}

fn stopped(actor: &Actor) -> SurfaceError {
    let log = log_tail(&actor.host.log_of(&actor.meta.vm_id));
    SurfaceError::Lease(LeaseError::Stopped {
        id: actor.meta.vm_id.clone(),
        log,
    })
}

/// Writes down and opens the surface's port and those of `expose` that are not published yet.
async fn publish(actor: &mut Actor, expose: &[Expose]) -> Result<(), SurfaceError> {
    let mut meta = actor.meta.clone();
    let mut taken = Vec::new();
    let published = async {
        for wanted in expose {
            if find(&meta, wanted).is_none() {
                let host_port = take_port(actor, wanted.protocol)?;
                taken.push((host_port, wanted.protocol));
                meta.expose_endpoints.push(Published {
                    name: wanted.name.clone(),
                    port: wanted.port,
                    host_port,
                    protocol: wanted.protocol,
                });
            }
        }
        meta.surface_published = true;
        if meta == actor.meta {
            return Ok(());
        }
        let id = || meta.vm_id.clone();
        let store = actor.host.save(&meta).await;
        store.map_err(|source| SurfaceError::Store { id: id(), source })?;
        let rules = actor.host.firewall.set(actor.host.binding(&meta)).await;
        place("publish: open");
        rules.map_err(|source| SurfaceError::Publish { id: id(), source })
    };
    let result = published.await;
    match result {
        Ok(()) => actor.meta = meta,
        Err(_) => {
            for port in taken {
                actor.host.tables.give_back(port);
            }
            // Back to what the rules still say; the next start-agent repeats all of it.
            if let Err(error) = actor.host.save(&actor.meta).await {
                tracing::warn!(vm_id = actor.meta.vm_id, %error, "published ports not taken back");
            }
        }
    }
    result
}

fn find<'a>(meta: &'a Meta, wanted: &Expose) -> Option<&'a Published> {
    meta.expose_endpoints
        .iter()
        .find(|p| p.port == wanted.port && p.name == wanted.name && p.protocol == wanted.protocol)
}

/// A free port of the range that no program of the host listens on.
fn take_port(actor: &Actor, protocol: Protocol) -> Result<u16, SurfaceError> {
    let range = actor.host.config.net.expose.clone();
    let (first, last) = (*range.start(), *range.end());
    let usable = |port| match protocol {
        Protocol::Tcp => std::net::TcpListener::bind(("0.0.0.0", port)).is_ok(),
        Protocol::Udp => std::net::UdpSocket::bind(("0.0.0.0", port)).is_ok(),
    };
    actor
        .host
        .tables
        .take_port(range, protocol, usable)
        .ok_or(SurfaceError::NoPort { first, last })
}
