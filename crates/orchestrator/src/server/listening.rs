//! Binds, accepts, and waits for connections at shutdown.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::Router;
use futures_util::FutureExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Timeouts, connection};

/// Pause after a failed accept, which mostly means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound listener that does not accept yet.
pub struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    timeouts: Timeouts,
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening")
            .field("address", &self.address)
            .field("scheme", &self.scheme())
            .finish_non_exhaustive()
    }
}

impl Listening {
    /// Binds `listen`: `host:port`, or `:port` for all addresses.
    ///
    /// # Errors
    /// The address is not usable or taken.
    pub async fn bind(
        listen: &str,
        tls: Option<Arc<ServerConfig>>,
        timeouts: Timeouts,
    ) -> anyhow::Result<Self> {
        let listener = bind(listen).await.with_context(|| {
            format!("cannot listen on {listen:?} (ORCH_LISTEN): is another process using the port?")
        })?;
        let address = listener
            .local_addr()
            .context("cannot read the listener's address")?;
        Ok(Self {
            listener,
            address,
            tls: tls.map(TlsAcceptor::from),
            timeouts,
        })
    }

    /// Where it listens; the port is the real one when 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http` or `https`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Accepts until `stop`, then waits for the connections that are left.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let serve = |(stream, peer): (_, SocketAddr)| {
            // IPv4 peers of a socket of both families are IPv4 peers.
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            let router = (router.clone(), self.timeouts);
            connections.spawn(serve_one(
                stream,
                peer,
                self.tls.clone(),
                router,
                stop.clone(),
            ));
        };
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok(accepted) => serve(accepted),
                Err(e) => {
                    tracing::warn!(error = %e, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        // Who is connected already would see a reset, and not know what it means.
        while let Some(Ok(accepted)) = self.listener.accept().now_or_never() {
            serve(accepted);
        }
        drop(self.listener);
        connections.close();
        connections.wait().await;
    }
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    (router, timeouts): (Router, Timeouts),
    stop: CancellationToken,
) {
    if let Err(e) = stream.set_nodelay(true) {
        tracing::debug!(%peer, error = %e, "cannot set TCP_NODELAY");
    }
    let Some(acceptor) = tls else {
        return connection::serve(stream, peer, router, timeouts, stop).await;
    };
    // Apart, so that the tasks of connections without TLS have no room for it.
    let secured = async move {
        match tokio::time::timeout(timeouts.read_header, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => connection::serve(stream, peer, router, timeouts, stop).await,
            Ok(Err(e)) => tracing::debug!(%peer, error = %e, "TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
        }
    };
    Box::pin(secured).await;
}

/// `:port` is every address of both families, or of IPv4 where there is no IPv6.
async fn bind(listen: &str) -> io::Result<TcpListener> {
    let Some(port) = listen.strip_prefix(':') else {
        return TcpListener::bind(listen).await;
    };
    match TcpListener::bind(format!("[::]:{port}")).await {
        Err(e) if e.raw_os_error() == Some(NO_IPV6) => {
            TcpListener::bind(format!("0.0.0.0:{port}")).await
        }
        other => other,
    }
}

/// `EAFNOSUPPORT`
const NO_IPV6: i32 = 97;
