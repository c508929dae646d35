//! The public surface of a fake guest: TLS with the certificate and the token that were
//! in `/fuse` when its guest agent was started last.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

#[derive(Debug, Clone, Default)]
struct InForce {
    certificate: Vec<u8>,
    key: Vec<u8>,
    token: Vec<u8>,
}

/// A listening surface; dropping the last clone's VM ends it.
#[derive(Debug, Clone)]
pub(super) struct Surface {
    pub(super) address: SocketAddr,
    in_force: Arc<Mutex<InForce>>,
    /// Ends with the last clone.
    _tasks: Arc<JoinSet<()>>,
}

impl Surface {
    /// Listens on a free port of the loopback.
    pub(super) async fn listen() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let in_force = Arc::new(Mutex::new(InForce::default()));
        let shared = in_force.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let current = shared
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                // A client that gives up is no failure of the surface.
                let _outcome = answer(stream, &current).await;
            }
        });
        Ok(Self {
            address,
            in_force,
            _tasks: Arc::new(tasks),
        })
    }

    /// Takes the credentials among these files into force.
    pub(super) fn start(&self, files: &BTreeMap<String, Vec<u8>>) {
        let file = |path: &str| files.get(path).cloned().unwrap_or_default();
        *self.in_force.lock().unwrap_or_else(PoisonError::into_inner) = InForce {
            certificate: file("/fuse/tls/cert.pem"),
            key: file("/fuse/tls/key.pem"),
            token: file("/fuse/auth-token"),
        };
    }
}

async fn answer(stream: TcpStream, current: &InForce) -> anyhow::Result<()> {
    let certificate = CertificateDer::from_pem_slice(&current.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&current.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    let mut stream = TlsAcceptor::from(Arc::new(tls)).accept(stream).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.context("a whole request")?);
    }
    let wanted = format!("bearer {}", String::from_utf8_lossy(&current.token));
    let is_allowed = String::from_utf8_lossy(&head)
        .lines()
        .filter_map(|line| line.split_once(": "))
        .any(|(name, value)| {
            name.eq_ignore_ascii_case("authorization") && value.eq_ignore_ascii_case(&wanted)
        });
    let status = if is_allowed {
        "200 OK"
    } else {
        "401 Unauthorized"
    };
    let text = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}
